// Bulk tensor copies (TMA), global to shared. The tensor map lies in kernel parameter or global
// memory and is not rewritten while the kernel runs. `x` is the element index in the fastest
// dimension. The copy completes on an mbarrier of the destination CTA; box bytes outside the tensor
// arrive as zeros and count.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace expertplex::ptx {

// L2 eviction hints, as the instruction encodes them (createpolicy's fractional 1.0 results).
enum class CacheHint : uint64_t {
  kNormal = 0x1000000000000000ull,
  kEvictFirst = 0x12F0000000000000ull,  // streamed once: decode weights
  kEvictLast = 0x14F0000000000000ull,   // read again by every column tile: decode tokens
};

// Brings a map in global memory to where TMA looks first: the first load by it else waits for it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t destination, const CUtensorMap* map, int32_t x,
                                            int32_t y, uint32_t barrier, CacheHint hint) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(static_cast<uint64_t>(hint))
      : "memory");
}

}  // namespace expertplex::ptx
