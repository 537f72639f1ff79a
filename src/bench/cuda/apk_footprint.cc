// What a decode operation costs by its footprint (the paper's figure 6): time against tokens at a
// fixed number of experts, and against the experts that have rows at a fixed number of tokens.
#include "bench/cuda/apk_sections.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

using apk::Phase;
using apk::PipelineRole;

constexpr uint32_t kExperts = 32;
constexpr int kOperations = 40;
constexpr uint64_t kIdleNs = 400'000;
enum Slot : size_t { kResident, kMain };

Result<double> measure(ApkWorkload& workload, size_t slot, uint32_t experts, uint32_t row_count) {
  std::vector<uint32_t> counts(kExperts, 0);
  std::fill_n(counts.begin(), experts, row_count);
  for (int i = 0; i < kOperations; ++i) workload.push(0, slot, (i + 1) * kIdleNs, counts);
  EXPERTPLEX_ASSIGN(const auto times, workload.send_all());
  std::vector<double> us;
  for (const OperationTime& t : times[0]) us.push_back(t.microseconds());
  return quantile(us, 0.5);
}

}  // namespace

Result<void> measure_footprint(const GemmName& shape, BenchRows& rows) {
  const auto slot = [](PipelineRole pipeline, uint32_t row_count) {
    return WorkloadSlot{.phase = Phase::kDecode,
                        .pipeline = pipeline,
                        .rows = row_count,
                        .experts = kExperts,
                        .weight_sets = 2};
  };
  EXPERTPLEX_ASSIGN(const auto workload,
                    ApkWorkload::make(shape, {slot(PipelineRole::kResident, 16),
                                              slot(PipelineRole::kMain, 128)}));
  EXPERTPLEX_TRY(workload->start({}));
  const auto tell = [&](const std::string& plot, const std::string& series, uint32_t experts,
                        uint32_t row_count, uint32_t x) -> Result<void> {
    const size_t which = row_count > 16 ? kMain : kResident;
    EXPERTPLEX_ASSIGN(const double us, measure(*workload, which, experts, row_count));
    fmt::print("{:34} {:18} {:4} experts x {:4} rows: {:7.1f} us\n", plot, series, experts,
               row_count, us);
    rows.point(plot, series, fmt::format("{}x{}", experts, row_count), x, us);
    return {};
  };
  const std::string tokens = fmt::format("footprint_{}_tokens", shape.name);
  for (const uint32_t experts : {8u, 32u}) {
    for (const uint32_t count : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u}) {
      EXPERTPLEX_TRY(
          tell(tokens, fmt::format("{} experts", experts), experts, count, experts * count));
    }
  }
  const std::string active = fmt::format("footprint_{}_experts", shape.name);
  for (const uint32_t routed : {32u, 128u, 512u}) {
    for (const uint32_t experts : {4u, 8u, 16u, 32u}) {
      if (routed / experts > 128 || routed < experts) continue;
      EXPERTPLEX_TRY(
          tell(active, fmt::format("{} rows", routed), experts, routed / experts, experts));
    }
  }
  // All rows of every layer, which finish() compares.
  for (int i = 0; i < 2; ++i) {
    for (const size_t s : {kResident, kMain}) workload->push(0, s, 0);
  }
  EXPERTPLEX_ASSIGN(const auto last, workload->send_all());
  (void)last;
  return workload->finish();
}

}  // namespace expertplex::bench
