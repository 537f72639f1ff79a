// A random grouped GEMM in device memory, and a slow exact reference for it: for tests, and for the
// correctness check of benches.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cuda/host/grouped_gemm.h"

namespace expertplex::cuda {

// Says aloud what is not tested on this machine.
bool have_gpu();

enum class GemmData {
  kNormal,     // roughly normal values over most of e4m3's range
  kPromotion,  // equal signs and mixed magnitudes: wrong without promotion every 128 of K
};

struct GemmProblem {
  GemmShape shape;
  std::vector<uint32_t> rows_per_expert;
  RowPlacement placement;
  uint64_t row_capacity = 0;
  DeviceBuffer<uint8_t> rows, weights;
  DeviceBuffer<float> row_scales, weight_scales;
  DeviceBuffer<__nv_bfloat16> output;
  uint32_t output_stride = 0;

  static Result<GemmProblem> make(const GemmShape& shape, std::vector<uint32_t> rows_per_expert,
                                  RowPlacement placement, uint32_t seed,
                                  GemmData data = GemmData::kNormal);
  GemmOperands operands() const;
  Result<void> poison();
  Result<std::vector<uint16_t>> read_output() const;
};

// What a comparison of all elements found.
struct GemmErrors {
  double relative_l2 = 0;    // over the rows that exist
  double worst = 0;          // largest |d - reference| / (|reference| + rms of the reference)
  uint64_t unwritten = 0;    // elements of rows that exist and still hold poison
  uint64_t overwritten = 0;  // elements outside them that do not
};
// Of every `row_step`-th row; of the others it is only looked whether they were written.
Result<GemmErrors> compare_with_reference(const GemmProblem& problem, uint32_t row_step = 1);

}  // namespace expertplex::cuda
