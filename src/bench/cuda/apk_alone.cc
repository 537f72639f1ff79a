// Operations with nothing beside them, through the persistent kernel. Decode: isolated (the kernel
// is idle before each), and with the next one always ready (two slots, so that one's last tiles and
// the next one's first overlap). Prefill: after 30 ms of idle time, and one after the other.
#include <algorithm>

#include "bench/cuda/apk_sections.h"
#include "bench/cuda/cublaslt_peak.h"
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

// Targets: anchors of the best launched kernels on such a machine, 0.98 of them for prefill.
struct Target {
  const char* name;
  const char* text;
};
constexpr Target kTargets[] = {{"glm_gate_up.contiguous_8x1024_tflops", ">= 1333"},
                               {"glm_gate_up.contiguous_8x8192_tflops", ">= 1350"},
                               {"glm_gate_up.contiguous_8x16384_tflops", ">= 1285"},
                               {"glm_down.contiguous_8x1024_tflops", ">= 1279"},
                               {"glm_down.contiguous_8x8192_tflops", ">= 1320"},
                               {"glm_down.contiguous_8x16384_tflops", ">= 1313"},
                               {"minimax_gate_up.contiguous_8x1024_tflops", ">= 1301"},
                               {"minimax_gate_up.contiguous_8x8192_tflops", ">= 1377"},
                               {"minimax_gate_up.contiguous_8x16384_tflops", ">= 1379"},
                               {"minimax_down.contiguous_8x1024_tflops", ">= 1200"},
                               {"minimax_down.contiguous_8x8192_tflops", ">= 1289"},
                               {"minimax_down.contiguous_8x16384_tflops", ">= 1285"},
                               {"glm_gate_up.masked_8x16_us", "<= 49"},
                               {"glm_gate_up.masked_8x16_us_b2b", "<= 46"},
                               {"glm_gate_up.masked_8x128_us", "<= 61"},
                               {"glm_gate_up.masked_8x128_us_b2b", "<= 55"},
                               {"glm_gate_up.masked_32x16_us_b2b", "<= 195"},
                               {"minimax_gate_up.masked_8x16_us", "<= 22"},
                               {"minimax_gate_up.masked_8x16_us_b2b", "<= 19"}};

void add(BenchRows& rows, const std::string& name, double value, const std::string& unit) {
  const auto* target =
      std::ranges::find_if(kTargets, [&](const Target& t) { return name == t.name; });
  rows.add("apk.gemm." + name, value, unit, target == std::end(kTargets) ? "" : target->text);
}

// A prefill operation with the kernel for itself, the resident pipeline looking for work beside it.
Result<void> measure_prefill(const GemmName& shape, uint32_t row_count, double cublaslt_tflops,
                             BenchRows& rows) {
  const uint64_t bytes = uint64_t{kSharedExperts} * shape.columns * shape.k;
  // Two slots; large operations have long forgotten their weights when they come again.
  const WorkloadSlot slot{
      .rows = row_count,
      .weight_sets = row_count > 1024 ? 1 : static_cast<uint32_t>(kRotatedBytes / 2 / bytes + 1)};
  EXPERTPLEX_ASSIGN(const auto workload, ApkWorkload::make(shape, {slot, slot}));
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
  const double flops = 2.0 * kSharedExperts * row_count * shape.columns * shape.k;
  const Spread s = spread(burst);
  const double tflops = flops / s.median * 1e-6;
  fmt::print(
      "{} {} prefill {}x{} on {} SMs: burst {:.1f} us ({:.1f} .. {:.1f}), {:.0f} TFLOP/s; "
      "back to back {:.1f} us, {:.0f} TFLOP/s\n",
      shape.name, shape.gemm, kSharedExperts, row_count, workload->ctas(), s.median, s.low, s.high,
      tflops, each, flops / each * 1e-6);
  const std::string name =
      fmt::format("{}_{}.contiguous_{}x{}", shape.name, shape.gemm, kSharedExperts, row_count);
  add(rows, name + "_tflops", tflops, "TFLOP/s");
  if (cublaslt_tflops > 0) add(rows, name + "_x_cublaslt", tflops / cublaslt_tflops, "");
  return {};
}

Result<void> measure_decode(const GemmName& shape, BenchRows& rows) {
  for (const uint32_t experts : {8u, 32u}) {
    for (const uint32_t count : {16u, 128u}) {
      const PipelineRole pipeline = count > 16 ? PipelineRole::kMain : PipelineRole::kResident;
      EXPERTPLEX_ASSIGN(const Times t, measure(shape, pipeline, experts, count));
      const double bytes = double(experts) * shape.columns * shape.k;
      fmt::print(
          "{} {} {}x{}: isolated {:.1f} us ({:.1f} .. {:.1f}, p99 {:.1f}), back to back "
          "{:.1f} us, {:.2f} TB/s\n",
          shape.name, shape.gemm, experts, count, t.isolated.median, t.isolated.low,
          t.isolated.high, t.isolated_p99, t.back_to_back, bytes / t.back_to_back * 1e-6);
      const std::string name =
          fmt::format("{}_{}.masked_{}x{}_us", shape.name, shape.gemm, experts, count);
      add(rows, name, t.isolated.median, "us");
      add(rows, name + "_b2b", t.back_to_back, "us");
    }
  }
  return {};
}

}  // namespace

Result<void> measure_alone(const GemmName& model, BenchRows& rows) {
  const auto peak = measure_cublaslt_tflops(10);
  if (peak) {
    fmt::print("cuBLASLt FP8 8192 x 8192 x 8192: {:.0f} TFLOP/s\n", peak.value());
  } else {
    fmt::print("no ratio to cuBLASLt: {}\n", peak.error().message);
  }
  for (const GemmName& shape : {kGlmGateUp, kGlmDown, kMiniMaxGateUp, kMiniMaxDown}) {
    if (std::string_view(shape.name) != model.name) continue;
    for (const uint32_t count : {128u, 1024u, 8192u, 16384u}) {
      EXPERTPLEX_TRY(measure_prefill(shape, count, peak ? peak.value() : 0, rows));
    }
    EXPERTPLEX_TRY(measure_decode(shape, rows));
  }
  return {};
}

}  // namespace expertplex::bench
