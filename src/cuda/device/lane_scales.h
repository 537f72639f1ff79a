// The weight scales of a tile, one per k tile, held by the lanes of the producer's warp: 32 of them
// come with one load, the next 32 on their way, so that no k tile waits for its own.
#pragma once

#include <cstdint>

namespace expertplex::cuda {

class LaneScales {
 public:
  // All lanes. Of the 32 scales around `first_k`, this lane's; nothing waits for it yet.
  static __device__ __forceinline__ float load(const float* scales, uint32_t count,
                                               uint32_t first_k) {
    const uint32_t mine = first_k / 32 * 32 + threadIdx.x % 32;
    return mine < count ? __ldg(scales + mine) : 0.0f;
  }

  // `first` is what load() gave for first_k.
  __device__ __forceinline__ LaneScales(const float* scales, uint32_t count, uint32_t first_k,
                                        float first)
      : scales_(scales), count_(count), base_(first_k / 32 * 32), mine_(first) {
    next_ = load(scales, count, base_ + 32);
  }
  __device__ __forceinline__ LaneScales(const float* scales, uint32_t count, uint32_t first_k)
      : LaneScales(scales, count, first_k, load(scales, count, first_k)) {}

  // All lanes, k ascending from first_k.
  __device__ __forceinline__ float at(uint32_t k) {
    if (k / 32 * 32 != base_) {
      base_ += 32;
      mine_ = next_;
      next_ = load(scales_, count_, base_ + 32);
    }
    return __shfl_sync(0xffffffff, mine_, k % 32);
  }

 private:
  const float* scales_;
  uint32_t count_, base_;
  float mine_, next_;
};

}  // namespace expertplex::cuda
