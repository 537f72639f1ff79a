// Accumulators to BF16 rows in global memory, without shared memory: four lanes exchange values so
// that each stores 16 contiguous bytes. As fast as staging for TMA stores, and it leaves the shared
// memory to the rings.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

// 4x4 transpose of words among the four lanes of a quad: lane q's word i becomes lane i's word q.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4], uint32_t lane) {
#pragma unroll
  for (uint32_t bit = 1; bit <= 2; bit <<= 1) {
    const bool high = lane & bit;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t other = __shfl_xor_sync(0xffffffff, high ? words[i] : words[i | bit], bit);
      if (high) {
        words[i] = other;
      } else {
        words[i | bit] = other;
      }
    }
  }
}

// Stores a warp's 16 rows x 128 columns of wgmma's D (cuda/ptx/wgmma.h). `output` is this thread's
// row (lane / 4) at column 8 * (lane % 4); of the rows lane / 4 and lane / 4 + 8 those below
// `rows_left`, counted from this thread's row, are stored.
__device__ __forceinline__ void store_rows(__nv_bfloat16* output, uint32_t stride,
                                           const float (&values)[64], uint32_t lane,
                                           int32_t rows_left) {
#pragma unroll
  for (uint32_t group = 0; group < 16; group += 4) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t v = 4 * (group + i) + 2 * half;
        words[i] = ptx::pack_bf16(values[v], values[v + 1]);
      }
      transpose_quad(words, lane);
      if (static_cast<int32_t>(half * 8) < rows_left) {
        *reinterpret_cast<uint4*>(output + size_t{half} * 8 * stride + group * 8) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace expertplex::cuda
