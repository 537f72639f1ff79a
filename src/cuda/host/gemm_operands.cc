#include "cuda/host/gemm_operands.h"

#include "cuda/host/tensor_map.h"

namespace expertplex::cuda {
namespace {

bool is_swapped(apk::Phase phase, apk::PipelineRole pipeline) {
  return pipeline == apk::PipelineRole::kMain && phase == apk::Phase::kDecode;
}

}  // namespace

GemmTiling gemm_tiling(apk::Phase phase, apk::PipelineRole pipeline) {
  if (pipeline == apk::PipelineRole::kResident) return {kResidentRows, kResidentWeightRows};
  if (is_swapped(phase, pipeline)) return {kMainNarrowRows, kMainWideRows};
  return {kMainWideRows, kMainNarrowRows};
}

Result<void> check_gemm_shape(const GemmShape& shape, apk::Phase phase,
                              apk::PipelineRole pipeline) {
  const uint32_t column_step = gemm_tiling(phase, pipeline).columns;
  if (shape.experts == 0 || shape.columns == 0 || shape.columns % column_step != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "grouped GEMM: {} experts with {} columns; columns must be a multiple of {}",
                      shape.experts, shape.columns, column_step);
  }
  if (shape.k == 0 || shape.k % kTileK != 0) {
    return make_error(ErrorCode::kUnsupported, "grouped GEMM: K = {}; it must be a multiple of {}",
                      shape.k, kTileK);
  }
  // The main pipeline keeps two groups of row scales (main_producer.h).
  if (pipeline == apk::PipelineRole::kMain && shape.k_tiles() % kScaleGroup == 1) {
    return make_error(ErrorCode::kUnsupported,
                      "grouped GEMM: K = {}; K / 128 modulo 4 must not be 1", shape.k);
  }
  return {};
}

Result<GemmBinding> make_gemm_binding(const GemmOperands& operands, apk::Phase phase,
                                      apk::PipelineRole pipeline) {
  const GemmShape& shape = operands.shape;
  EXPERTPLEX_TRY(check_gemm_shape(shape, phase, pipeline));
  EXPERTPLEX_CHECK(operands.row_scale_stride == row_scale_stride_of(shape.k), "row scale stride {}",
                   operands.row_scale_stride);
  EXPERTPLEX_CHECK(operands.output_stride % 8 == 0 && operands.output_stride >= shape.columns,
                   "output stride {}", operands.output_stride);
  const GemmTiling tiling = gemm_tiling(phase, pipeline);
  GemmBinding binding;
  EXPERTPLEX_ASSIGN(
      binding.rows_map,
      make_fp8_map({operands.rows, operands.row_capacity, shape.k, shape.k}, tiling.rows));
  EXPERTPLEX_ASSIGN(
      binding.row_scales_map,
      make_float_map({operands.row_scales, operands.row_capacity, operands.row_scale_stride,
                      operands.row_scale_stride * sizeof(float)},
                     tiling.rows, kScaleGroup));
  EXPERTPLEX_ASSIGN(
      binding.weights_map,
      make_fp8_map({operands.weights, uint64_t{shape.experts} * shape.columns, shape.k, shape.k},
                   tiling.columns));
  binding.head.weight_scales = operands.weight_scales;
  binding.head.output = operands.output;
  binding.head.block_first_row = operands.block_first_row;
  binding.head.masked_capacity = operands.masked_capacity;
  binding.head.output_stride = operands.output_stride;
  binding.head.columns = shape.columns;
  binding.head.k_tiles = shape.k_tiles();
  return binding;
}

}  // namespace expertplex::cuda
