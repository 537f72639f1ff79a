// The weight scales of a tile, one per k tile, held by the lanes of the producer's warp: 32 of them
// come with one load. The producer sends for the next 32 when it has used the last of these, and
// for the next tile's first ones at the end of this one, so that no stage waits for a whole round
// trip (2 us beside a prefill). They have one register a lane: with a second one for what is under
// way the producer spilled it, and so waited for it.
#pragma once

#include <cstdint>

namespace expertplex::cuda {

class LaneScales {
 public:
  // All lanes. Sends for the 32 scales around `k`; nothing waits for them yet.
  __device__ __forceinline__ void fetch(const float* scales, uint32_t count, uint32_t k) {
    const uint32_t mine = k / 32 * 32 + threadIdx.x % 32;
    if (mine < count) mine_ = __ldg(scales + mine);
  }
  // All lanes. That of k, one of those that were sent for.
  __device__ __forceinline__ float at(uint32_t k) const {
    return __shfl_sync(0xffffffff, mine_, k % 32);
  }
  // Whether k is the last of the 32.
  static __device__ __forceinline__ bool ends(uint32_t k) { return k % 32 == 31; }

 private:
  float mine_ = 0;
};

}  // namespace expertplex::cuda
