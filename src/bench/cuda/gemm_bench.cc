#include "bench/cuda/gemm_bench.h"

#include <fmt/format.h>

#include "bench/cuda/gpu_timer.h"
#include "bench/cuda/hopper.h"
#include "bench/statistics.h"
#include "cuda/host/gemm_config_search.h"
#include "cuda/reference/gemm_problem.h"

namespace expertplex::bench {
namespace {

using apk::Phase;
using apk::PipelineRole;
using cuda::GemmConfig;
using cuda::GemmOperation;
using cuda::GemmProblem;

struct NamedShape {
  const char* name;
  uint32_t columns, k;
};
constexpr NamedShape kShapes[] = {{"minimax_gate_up", 3072, 3072},
                                  {"minimax_down", 3072, 1536},
                                  {"glm_gate_up", 4096, 6144},
                                  {"glm_down", 6144, 2048}};

// Weights are rotated through so many sets that they do not stay in L2.
constexpr uint64_t kRotatedBytes = 512ull << 20;

struct Case {
  NamedShape shape;
  uint32_t experts, rows;
  Phase phase;
  PipelineRole pipeline;

  std::string name() const {
    return fmt::format("apk.gemm.{}.{}_{}x{}", shape.name,
                       phase == Phase::kPrefill ? "contiguous" : "masked", experts, rows);
  }
  uint64_t weight_bytes() const { return uint64_t{experts} * shape.columns * shape.k; }
  double flops() const { return 2.0 * experts * rows * shape.columns * shape.k; }
};

// The same operation on several sets of weights.
class RotatingCase {
 public:
  static Result<RotatingCase> make(const Case& c) {
    RotatingCase result;
    const uint64_t sets = (kRotatedBytes + c.weight_bytes() - 1) / c.weight_bytes();
    for (uint64_t s = 0; s < sets; ++s) {
      const cuda::RowPlacement placement{c.phase == Phase::kDecode ? c.rows : 0};
      EXPERTPLEX_ASSIGN(GemmProblem problem,
                        GemmProblem::make({c.experts, c.shape.columns, c.shape.k},
                                          std::vector<uint32_t>(c.experts, c.rows), placement,
                                          static_cast<uint32_t>(s + 1)));
      EXPERTPLEX_ASSIGN(GemmOperation operation,
                        GemmOperation::make(problem.operands(), c.phase, c.pipeline,
                                            problem.rows_per_expert, placement));
      result.problems_.push_back(std::move(problem));
      result.operations_.push_back(std::move(operation));
    }
    return result;
  }

  Result<void> launch(const GemmConfig& config, uint32_t ctas, int index) const {
    const GemmOperation* op = &operations_[static_cast<size_t>(index) % operations_.size()];
    const bool resident = op->pipeline() == PipelineRole::kResident;
    return cuda::launch_grouped_gemm(config, resident ? nullptr : op, resident ? op : nullptr, ctas,
                                     nullptr);
  }

  // Poisons, runs and compares the first set.
  Result<void> check(const GemmConfig& config, uint32_t ctas, const std::string& name) {
    EXPERTPLEX_TRY(problems_[0].poison());
    EXPERTPLEX_TRY(launch(config, ctas, 0));
    EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
    EXPERTPLEX_ASSIGN(const cuda::GemmErrors e, cuda::compare_with_reference(problems_[0], 61));
    if (e.relative_l2 < 2e-3 && e.unwritten == 0 && e.overwritten == 0) return {};
    return make_error(
        ErrorCode::kInternal,
        "{}: relative error {:.2e} (limit 2e-3), {} elements unwritten, {} overwritten", name,
        e.relative_l2, e.unwritten, e.overwritten);
  }

 private:
  std::vector<GemmProblem> problems_;
  std::vector<GemmOperation> operations_;
};

std::string config_name(const GemmConfig& config) {
  return config.has_resident() ? "resident" : "main only";
}

Result<void> measure(const Case& c, const GemmBenchOptions& options, uint32_t ctas) {
  EXPERTPLEX_ASSIGN(RotatingCase rotating, RotatingCase::make(c));
  for (const GemmConfig& config : cuda::compiled_gemm_configs()) {
    if (c.pipeline == PipelineRole::kResident && !config.has_resident()) continue;
    EXPERTPLEX_TRY(rotating.check(config, ctas, c.name()));
    const auto launch = [&](int i) { return rotating.launch(config, ctas, i); };
    EXPERTPLEX_ASSIGN(const auto burst, time_launches(options.repetitions, Regime::kBurst, launch));
    EXPERTPLEX_ASSIGN(const auto running,
                      time_launches(2 * options.repetitions, Regime::kBackToBack, launch));
    const Spread b = spread(burst), r = spread(running);
    fmt::print(
        "{:44} {:10} {:8} burst {:8.1f} us ({:.1f} .. {:.1f}) {:6.0f} TF {:5.2f} TB/s   back to "
        "back {:8.1f} us {:6.0f} TF\n",
        c.name(), config_name(config), c.pipeline == PipelineRole::kResident ? "resident" : "main",
        b.median, b.low, b.high, c.flops() / b.median * 1e-6,
        double(c.weight_bytes()) / b.median * 1e-6, r.median, c.flops() / r.median * 1e-6);
    std::fflush(stdout);
  }
  return {};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const NamedShape& shape : kShapes) {
    for (const uint32_t count : {128u, 1024u, 8192u, 16384u}) {
      cases.push_back({shape, 8, count, Phase::kPrefill, PipelineRole::kMain});
    }
    for (const uint32_t experts : {8u, 32u}) {
      for (const uint32_t count : {16u, 128u}) {
        for (const PipelineRole pipeline : {PipelineRole::kMain, PipelineRole::kResident}) {
          if (pipeline == PipelineRole::kResident && count > 32) continue;
          cases.push_back({shape, experts, count, Phase::kDecode, pipeline});
        }
      }
    }
  }
  return cases;
}

// The plans of one workload; the pipeline is for the search to choose.
Result<void> predict(const Case& c) {
  cuda::GemmWorkload workload;
  workload.shape = {c.experts, c.shape.columns, c.shape.k};
  workload.rows_per_expert.assign(c.experts, c.rows);
  workload.phase = c.phase;
  EXPERTPLEX_ASSIGN(const cuda::GemmPlans plans,
                    cuda::search_gemm_plans(workload, cuda::compiled_gemm_configs()));
  fmt::print("{}\n", c.name());
  for (size_t i = 0; i < plans.ranked.size(); ++i) {
    fmt::print("  {}  {}\n", i + 1, cuda::describe(plans.ranked[i]));
  }
  return {};
}

// Those that the options name.
Result<std::vector<Case>> chosen_cases(const GemmBenchOptions& options) {
  std::vector<Case> cases;
  for (const Case& c : all_cases()) {
    if (c.name().find(options.only) != std::string::npos) cases.push_back(c);
  }
  if (!cases.empty()) return cases;
  return make_error(ErrorCode::kInvalidArgument,
                    "--only: no row's name contains \"{}\"; expected a part of one, as of \"{}\"",
                    options.only, all_cases().front().name());
}

Result<void> run_prediction(const std::vector<Case>& cases) {
  fmt::print("predicted for {} SMs, back to back at full clock; nothing is measured\n",
             cuda::GemmWorkload{}.sms);
  for (const Case& c : cases) {
    if (c.pipeline == PipelineRole::kResident) continue;  // a second name of the same workload
    EXPERTPLEX_TRY(predict(c));
  }
  return {};
}

}  // namespace

Result<void> run_gemm_bench(const GemmBenchOptions& options) {
  EXPERTPLEX_ASSIGN(const std::vector<Case> cases, chosen_cases(options));
  if (options.predict) return run_prediction(cases);
  EXPERTPLEX_ASSIGN(const cudaDeviceProp device, find_hopper());
  const auto ctas = static_cast<uint32_t>(device.multiProcessorCount);
  for (const Case& c : cases) EXPERTPLEX_TRY(measure(c, options, ctas));
  return {};
}

}  // namespace expertplex::bench
