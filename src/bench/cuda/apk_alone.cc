// Decode operations with nothing beside them, through the persistent kernel: isolated (the kernel is
// idle before each), and with the next one always ready (two slots, so that one's last tiles and the
// next one's first overlap).
#include "bench/cuda/apk_sections.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

using apk::Phase;
using apk::PipelineRole;

constexpr uint32_t kOperations = 200;
constexpr uint64_t kIdleNs = 400'000;
constexpr uint64_t kRotatedBytes = 512ull << 20;  // weights, so that they do not stay in L2

struct Times {
  Spread isolated;
  double isolated_p99 = 0, back_to_back = 0;
};

Result<Times> measure(const GemmName& shape, PipelineRole pipeline, uint32_t experts,
                      uint32_t row_count) {
  const uint64_t bytes = uint64_t{experts} * shape.columns * shape.k;
  const uint32_t sets = static_cast<uint32_t>((kRotatedBytes + 2 * bytes - 1) / (2 * bytes));
  const WorkloadSlot slot{.phase = Phase::kDecode,
                          .pipeline = pipeline,
                          .rows = row_count,
                          .experts = experts,
                          .weight_sets = sets};
  EXPERTPLEX_ASSIGN(const auto workload, ApkWorkload::make(shape, {slot, slot}));
  EXPERTPLEX_TRY(workload->start({}));
  for (uint32_t i = 0; i < kOperations; ++i) workload->push(0, i % 2, (i + 1) * kIdleNs);
  EXPERTPLEX_ASSIGN(const auto isolated, workload->send_all());
  for (uint32_t i = 0; i < kOperations; ++i) workload->push(i % 2, i % 2, 0);
  EXPERTPLEX_ASSIGN(const auto running, workload->send_all());
  EXPERTPLEX_TRY(workload->finish());

  std::vector<double> us;
  for (const OperationTime& t : isolated[0]) us.push_back(t.microseconds());
  Times times{spread(us), quantile(us, 0.99)};
  const uint64_t first = running[0].front().sent_ns;
  const uint64_t last = std::max(running[0].back().done_ns, running[1].back().done_ns);
  times.back_to_back = static_cast<double>(last - first) * 1e-3 / kOperations;
  return times;
}

// A prefill operation with the kernel for itself, the resident pipeline looking for work beside it.
Result<void> measure_prefill(const GemmName& shape, BenchRows& rows) {
  EXPERTPLEX_ASSIGN(const auto workload, ApkWorkload::make(shape, {{}, {}}));
  EXPERTPLEX_TRY(workload->start({}));
  std::vector<double> burst;
  for (int i = 0; i < 10; ++i) {
    // The idle time is the regime itself.
    std::this_thread::sleep_until(std::chrono::steady_clock::now() + kBurstIdle);
    workload->push(0, 0, 0);
    EXPERTPLEX_ASSIGN(const auto times, workload->send_all());
    burst.push_back(times[0][0].microseconds());
  }
  constexpr int kRunning = 10;  // of each slot
  for (int i = 0; i < 2 * kRunning; ++i) workload->push(i % 2, i % 2, 0);
  EXPERTPLEX_ASSIGN(const auto running, workload->send_all());
  EXPERTPLEX_TRY(workload->finish());
  const uint64_t last = std::max(running[0].back().done_ns, running[1].back().done_ns);
  const double each =
      static_cast<double>(last - running[0].front().sent_ns) * 1e-3 / (2 * kRunning);
  const double flops = 2.0 * kSharedExperts * kPrefillRows * shape.columns * shape.k;
  const Spread s = spread(burst);
  fmt::print(
      "{} prefill {}x{} on {} SMs: burst {:.1f} us ({:.1f} .. {:.1f}), {:.0f} TFLOP/s; back to "
      "back {:.1f} us, {:.0f} TFLOP/s\n",
      shape.name, kSharedExperts, kPrefillRows, workload->ctas(), s.median, s.low, s.high,
      flops / s.median * 1e-6, each, flops / each * 1e-6);
  rows.add(fmt::format("apk.gemm.{}_gate_up.contiguous_8x8192_tflops", shape.name),
           flops / s.median * 1e-6, "TFLOP/s");
  return {};
}

}  // namespace

Result<void> measure_alone(const GemmName& shape, BenchRows& rows) {
  EXPERTPLEX_TRY(measure_prefill(shape, rows));
  for (const uint32_t experts : {8u, 32u}) {
    for (const uint32_t count : {16u, 128u}) {
      const PipelineRole pipeline = count > 16 ? PipelineRole::kMain : PipelineRole::kResident;
      EXPERTPLEX_ASSIGN(const Times t, measure(shape, pipeline, experts, count));
      const double bytes = double(experts) * shape.columns * shape.k;
      fmt::print(
          "{} {}x{}: isolated {:.1f} us ({:.1f} .. {:.1f}, p99 {:.1f}), back to back {:.1f} us, "
          "{:.2f} TB/s\n",
          shape.name, experts, count, t.isolated.median, t.isolated.low, t.isolated.high,
          t.isolated_p99, t.back_to_back, bytes / t.back_to_back * 1e-6);
      const std::string name =
          fmt::format("apk.gemm.{}_gate_up.masked_{}x{}_us", shape.name, experts, count);
      rows.add(name, t.isolated.median, "us");
      rows.add(name + "_b2b", t.back_to_back, "us");
    }
  }
  return {};
}

}  // namespace expertplex::bench
