// The weight scales of a tile, one per k tile, held by the lanes of the producer's warp: 32 of them
// come with one load, so that no k tile waits for its own.
#pragma once

#include <cstdint>

namespace expertplex::cuda {

class LaneScales {
 public:
  // All lanes. Loads those around `first_k`; nothing waits for them yet.
  __device__ __forceinline__ LaneScales(const float* scales, uint32_t count, uint32_t first_k)
      : scales_(scales), count_(count) {
    fetch(first_k / 32 * 32);
  }

  // All lanes, k ascending from first_k.
  __device__ __forceinline__ float at(uint32_t k) {
    if (k / 32 * 32 != base_) fetch(k / 32 * 32);
    return __shfl_sync(0xffffffff, mine_, k % 32);
  }

 private:
  __device__ __forceinline__ void fetch(uint32_t base) {
    const uint32_t mine = base + threadIdx.x % 32;
    base_ = base;
    if (mine < count_) mine_ = __ldg(scales_ + mine);
  }

  const float* scales_;
  uint32_t count_, base_;
  float mine_ = 0.0f;
};

}  // namespace expertplex::cuda
