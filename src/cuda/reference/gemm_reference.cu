#include <cuda_fp8.h>

#include "cuda/reference/gemm_reference.h"

namespace expertplex::cuda {
namespace {

__device__ uint32_t hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 32);
}

__device__ float unit(uint32_t h) { return (h >> 8) * (1.0f / (1 << 24)); }

__global__ void fill_fp8(uint8_t* data, uint64_t count, uint64_t seed, bool promotion) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    float value;
    if (!promotion) {
      float sum = -2.0f;
      for (uint32_t j = 0; j < 4; ++j) sum += unit(hash(seed + i * 4 + j));
      value = sum * 190.0f;  // standard deviation 110
    } else {
      value = i % 16 == 0 ? 448.0f : 7.5f;
    }
    data[i] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  }
}

__global__ void fill_scales(float* data, uint64_t count, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    data[i] = (0.5f + unit(hash(seed + i))) / 256.0f;
  }
}

__global__ void fill_poison(uint16_t* data, uint64_t count) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    data[i] = kPoison;
  }
}

__device__ float decode(uint8_t byte) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
}

// One block per (row, 128 columns). row_expert: -1 for rows that do not exist.
__global__ void compare(const uint8_t* rows, const float* row_scales, uint32_t scale_stride,
                        const uint8_t* weights, const float* weight_scales, const uint16_t* output,
                        uint32_t stride, uint32_t columns, uint32_t k, const int32_t* row_expert,
                        uint32_t row_step, ReferenceTotals* totals, float* reference) {
  __shared__ float row_values[128];
  const uint32_t row = blockIdx.x, column = blockIdx.y * 128 + threadIdx.x;
  const int32_t expert = row_expert[row];
  const uint16_t got = output[uint64_t{row} * stride + column];
  if (expert < 0) {
    if (got != kPoison) atomicAdd(&totals->overwritten, 1ull);
    return;
  }
  if (got == kPoison) atomicAdd(&totals->unwritten, 1ull);
  if (row % row_step != 0) return;
  const uint64_t weight_row = uint64_t(expert) * columns + column;
  double sum = 0;
  for (uint32_t kb = 0; kb < k / 128; ++kb) {
    __syncthreads();
    row_values[threadIdx.x] = decode(rows[uint64_t{row} * k + kb * 128 + threadIdx.x]);
    __syncthreads();
    float part = 0;  // exact enough: 128 products of 8 bits each
    const uint8_t* w = weights + weight_row * k + kb * 128;
    for (uint32_t i = 0; i < 128; ++i) part += row_values[i] * decode(w[i]);
    sum += double(part) * row_scales[uint64_t{row} * scale_stride + kb] *
           weight_scales[weight_row / 128 * (k / 128) + kb];
  }
  reference[uint64_t{row} * columns + column] = static_cast<float>(sum);
  if (got == kPoison) return;
  const double value = __uint_as_float(uint32_t{got} << 16);
  atomicAdd(&totals->squared_error, (value - sum) * (value - sum));
  atomicAdd(&totals->squared_reference, sum * sum);
}

__global__ void worst(const uint16_t* output, uint32_t stride, uint32_t columns,
                      const int32_t* row_expert, uint32_t row_step, const float* reference,
                      float rms, unsigned int* worst_bits) {
  const uint32_t row = blockIdx.x, column = blockIdx.y * 128 + threadIdx.x;
  if (row_expert[row] < 0 || row % row_step != 0) return;
  const uint16_t got = output[uint64_t{row} * stride + column];
  const float want = reference[uint64_t{row} * columns + column];
  const float error = fabsf(__uint_as_float(uint32_t{got} << 16) - want) / (fabsf(want) + rms);
  atomicMax(worst_bits, __float_as_uint(error == error ? error : 1e30f));
}

}  // namespace

cudaError_t fill_random_fp8(uint8_t* data, uint64_t count, uint64_t seed, bool promotion) {
  fill_fp8<<<1024, 256>>>(data, count, seed, promotion);
  return cudaDeviceSynchronize();
}

cudaError_t fill_random_scales(float* data, uint64_t count, uint64_t seed) {
  fill_scales<<<1024, 256>>>(data, count, seed);
  return cudaDeviceSynchronize();
}

cudaError_t fill_with_poison(uint16_t* data, uint64_t count) {
  fill_poison<<<1024, 256>>>(data, count);
  return cudaDeviceSynchronize();
}

cudaError_t compute_reference(const ReferenceGemm& g, ReferenceTotals* totals, float* reference) {
  compare<<<dim3(g.row_count, g.columns / 128), 128>>>(
      g.rows, g.row_scales, g.row_scale_stride, g.weights, g.weight_scales, g.output,
      g.output_stride, g.columns, g.k, g.row_expert, g.row_step, totals, reference);
  return cudaDeviceSynchronize();
}

cudaError_t find_worst(const ReferenceGemm& g, const float* reference, float rms,
                       unsigned int* worst_bits) {
  worst<<<dim3(g.row_count, g.columns / 128), 128>>>(
      g.output, g.output_stride, g.columns, g.row_expert, g.row_step, reference, rms, worst_bits);
  return cudaDeviceSynchronize();
}

}  // namespace expertplex::cuda
