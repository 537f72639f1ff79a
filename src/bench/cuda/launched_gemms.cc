#include "bench/cuda/launched_gemms.h"

namespace expertplex::bench {

using apk::Phase;
using apk::PipelineRole;
using cuda::GemmOperation;
using cuda::GemmProblem;

constexpr uint32_t kWeightSets = 4;

Result<LaunchedGemms> LaunchedGemms::make(const GemmName& shape, uint32_t decode_rows,
                                          Phases phases) {
  LaunchedGemms gemms;
  if (phases.prefill) {
    EXPERTPLEX_TRY(gemms.add(shape, Phase::kPrefill, PipelineRole::kMain, kPrefillRows, 1));
  }
  const PipelineRole pipeline = decode_rows > 16 ? PipelineRole::kMain : PipelineRole::kResident;
  for (uint32_t s = 0; phases.decode && s < kWeightSets; ++s) {
    EXPERTPLEX_TRY(gemms.add(shape, Phase::kDecode, pipeline, decode_rows, s + 2));
  }
  return gemms;
}

Result<void> LaunchedGemms::add(const GemmName& shape, Phase phase, PipelineRole pipeline,
                                uint32_t rows, uint32_t seed) {
  const cuda::RowPlacement placement{rows};
  EXPERTPLEX_ASSIGN(GemmProblem problem,
                    GemmProblem::make({kSharedExperts, shape.columns, shape.k},
                                      std::vector<uint32_t>(kSharedExperts, rows), placement, seed));
  EXPERTPLEX_TRY(problem.poison());
  EXPERTPLEX_ASSIGN(
      GemmOperation operation,
      GemmOperation::make(problem.operands(), phase, pipeline, problem.rows_per_expert, placement));
  problems_.push_back(std::move(problem));
  (phase == Phase::kPrefill ? prefill_ : decode_).push_back(std::move(operation));
  return {};
}

Result<void> LaunchedGemms::launch_prefill(uint32_t ctas, cudaStream_t stream) const {
  // The configuration without the resident pipeline: it is the faster one.
  return cuda::launch_grouped_gemm(cuda::compiled_gemm_configs()[1], &prefill_[0], nullptr, ctas,
                                   stream);
}

Result<void> LaunchedGemms::launch_decode(uint32_t ctas, cudaStream_t stream) {
  const GemmOperation& op = decode_[next_decode_++ % kWeightSets];
  const bool resident = op.pipeline() == PipelineRole::kResident;
  return cuda::launch_grouped_gemm(cuda::compiled_gemm_configs()[0], resident ? nullptr : &op,
                                   resident ? &op : nullptr, ctas, stream);
}

Result<void> LaunchedGemms::check(const std::string& name) const {
  for (const GemmProblem& problem : problems_) {
    EXPERTPLEX_ASSIGN(const cuda::GemmErrors e, cuda::compare_with_reference(problem, 61));
    if (e.relative_l2 < 2e-3 && e.unwritten == 0 && e.overwritten == 0) continue;
    return make_error(ErrorCode::kInternal, "{}: relative error {:.2e} (limit 2e-3), {} unwritten",
                      name, e.relative_l2, e.unwritten);
  }
  return {};
}

}  // namespace expertplex::bench
