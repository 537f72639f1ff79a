// Waiting on an mbarrier. The fast path is one instruction; the slow path looks at the CTA's abort
// word, so that no role outlives an abort.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace expertplex::cuda {

// False: aborted, leave. `abort` is the address of the CTA's abort word, which is looked at now and
// then: at every try it cost the main pipeline 1 %.
__device__ __forceinline__ bool wait_phase(uint32_t barrier, uint32_t parity, uint32_t abort) {
  constexpr uint32_t kTriesBetweenLooks = 64;
  for (uint32_t tries = 1; !ptx::mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries % kTriesBetweenLooks == 0 && ptx::load_shared_word(abort) != 0) return false;
  }
  return true;
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
