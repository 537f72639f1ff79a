// Kernels behind gemm_problem.h: random data, poison, and an exact reference. Pointers are device
// pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace expertplex::cuda {

constexpr uint16_t kPoison = 0x7fc1;  // a BF16 NaN that no kernel writes

struct ReferenceGemm {
  const uint8_t* rows = nullptr;
  const float* row_scales = nullptr;
  uint32_t row_scale_stride = 0;
  const uint8_t* weights = nullptr;
  const float* weight_scales = nullptr;
  const uint16_t* output = nullptr;  // what is checked
  uint32_t output_stride = 0;
  uint32_t row_count = 0, columns = 0, k = 0;
  const int32_t* row_expert = nullptr;  // -1: the row does not exist
  uint32_t row_step = 1;                // only every so many rows are computed
};

struct ReferenceTotals {
  double squared_error, squared_reference;
  unsigned long long unwritten, overwritten;
};

// `promotion`: values that come out wrong without promotion every 128 of K.
cudaError_t fill_random_fp8(uint8_t* data, uint64_t count, uint64_t seed, bool promotion);
cudaError_t fill_random_scales(float* data, uint64_t count, uint64_t seed);
cudaError_t fill_with_poison(uint16_t* data, uint64_t count);
// Adds to `totals`; writes [row_count][columns] of `reference`.
cudaError_t compute_reference(const ReferenceGemm& gemm, ReferenceTotals* totals, float* reference);
// The bits of the largest |output - reference| / (|reference| + rms).
cudaError_t find_worst(const ReferenceGemm& gemm, const float* reference, float rms,
                       unsigned int* worst_bits);

}  // namespace expertplex::cuda
