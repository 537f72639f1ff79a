// mbarriers in shared memory: one instruction, one wrapper. Addresses are 32-bit shared-window
// addresses (shared_address). A waiter names the parity of the phase it waits for: 0 for the first
// completion, then 1, 0, ...; a producer that waits for a ring stage never used yet waits for
// parity 1, which a fresh barrier passes.
#pragma once

#include <cstdint>

#include "cuda/ptx/shared_memory.h"

namespace expertplex::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the async proxy and to the cluster. Then synchronise.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Announces `bytes` that bulk copies will deliver, without arriving. While an arrival is still
// outstanding: else bytes that land before they are announced end a phase too early.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// True once the phase of `parity` has completed; suspends for a system-defined while before it says
// false. Acquires (CTA scope) what arrivals released and what bulk copies wrote.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// The same without suspending: a look.
__device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace expertplex::ptx
