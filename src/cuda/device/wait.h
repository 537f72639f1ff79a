// Waiting on an mbarrier. The fast path is one instruction; the slow path looks at the CTA's abort
// word, so that no role outlives an abort, and says what it waited for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/shared_layout.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/shared_memory.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

constexpr uint32_t kTriesBetweenLooks = 64;

// True: the CTA's roles are to leave; remembers that this warp was waiting for `barrier`.
template <typename Shared>
__device__ __forceinline__ bool aborted(uint32_t barrier, uint32_t parity) {
  constexpr uint32_t kControl = kSharedBase + offsetof(Shared, control);
  if (ptx::load_shared_word(kControl + offsetof(ProducerControl, abort)) == 0) return false;
  ptx::store_shared_word(kSharedBase + offsetof(Shared, left_waiting) + threadIdx.x / 32 * 4,
                         barrier | parity << 31);
  return true;
}

// False: aborted, leave. The abort word is looked at now and then: at every try it cost the main
// pipeline 1 %. For one thread and for math warps: a vote in the math loop takes stage and parity
// out of the uniform registers (spills, 15 %). Producers call warp_wait.
template <typename Shared>
__device__ __forceinline__ bool wait_phase(uint32_t barrier, uint32_t parity) {
  for (uint32_t tries = 1; !ptx::mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries % kTriesBetweenLooks == 0 && aborted<Shared>(barrier, parity)) return false;
  }
  return true;
}

// What all lanes of a warp make of what each has seen: they go the same way, even if a phase ends
// while they look.
__device__ __forceinline__ bool agree(bool seen) { return __all_sync(0xffffffff, seen); }

// The same for all lanes of a warp.
template <typename Shared>
__device__ __forceinline__ bool warp_wait(uint32_t barrier, uint32_t parity) {
  for (uint32_t tries = 1; !agree(ptx::mbarrier_try_wait(barrier, parity)); ++tries) {
    if (tries % kTriesBetweenLooks == 0 && __any_sync(0xffffffff, aborted<Shared>(barrier, parity)))
      return false;
  }
  return true;
}

// A producer's warp: one claimed tile more has begun; the next one is wanted (WantedTiles).
__device__ __forceinline__ void begin(uint32_t* begun) {
  const uint32_t address = ptx::shared_address(begun);
  if (ptx::elect_one()) ptx::store_shared_word(address, ptx::load_shared_word(address) + 1);
  __syncwarp();
}
__device__ __forceinline__ void want(uint32_t* wanted, const uint32_t* begun) {
  const uint32_t value = ptx::load_shared_word(ptx::shared_address(begun)) + 1;
  if (ptx::elect_one()) ptx::store_shared_word(ptx::shared_address(wanted), value);
  __syncwarp();
}

// Position in a ring: a stage, and the parity with which its full barrier is waited for.
template <uint32_t kStages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace expertplex::cuda
