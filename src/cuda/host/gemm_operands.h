// From the buffers of a grouped GEMM to the binding that a kernel reads: checks and TMA
// descriptors.
//
//   D[r, n] = sum over k of rows[r, k] * weights[e, n, k],  r in the rows of expert e
//
// FP8 e4m3 with one fp32 scale per 1 x 128 of rows and per 128 x 128 of weights; D in BF16.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "apk/policy.h"
#include "base/result.h"
#include "cuda/device/gemm_config.h"
#include "cuda/device/tile_work.h"

namespace expertplex::cuda {

struct GemmShape {
  uint32_t experts = 0;
  uint32_t columns = 0;  // N
  uint32_t k = 0;

  uint32_t k_tiles() const { return k / 128; }
};

// Device pointers. Rows lie as GemmBinding says.
struct GemmOperands {
  GemmShape shape;
  uint64_t row_capacity = 0;
  const uint8_t* rows = nullptr;         // [row_capacity][k]
  const float* row_scales = nullptr;     // [row_capacity][row_scale_stride]
  uint32_t row_scale_stride = 0;         // floats: k / 128 rounded up to 4 (row_scale_stride_of)
  const uint8_t* weights = nullptr;      // [experts * columns][k]
  const float* weight_scales = nullptr;  // [experts * columns / 128][k / 128]
  __nv_bfloat16* output = nullptr;       // [row_capacity][output_stride]
  uint32_t output_stride = 0;            // elements, a multiple of 8
  uint32_t masked_capacity = 0;          // 0: block_first_row says where rows lie
  const uint32_t* block_first_row = nullptr;
};

constexpr uint32_t row_scale_stride_of(uint32_t k) { return (k / 128 + 3) / 4 * 4; }

// How tiles of an operation are cut, by the pipeline and phase that run it.
struct GemmTiling {
  uint32_t rows = 0;
  uint32_t columns = 0;
};
GemmTiling gemm_tiling(apk::Phase phase, apk::PipelineRole pipeline);

// Refuses what the kernels cannot run, by name.
Result<void> check_gemm_shape(const GemmShape& shape, apk::Phase phase, apk::PipelineRole pipeline);

Result<GemmBinding> make_gemm_binding(const GemmOperands& operands, apk::Phase phase,
                                      apk::PipelineRole pipeline);

}  // namespace expertplex::cuda
