// cp.async: 16 bytes from global to shared memory, asynchronously and without registers.
#pragma once

#include <cstdint>

namespace expertplex::ptx {

__device__ __forceinline__ void async_copy_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

// One arrival at `barrier` (of those it was initialised for) once all copies that this thread has
// started are complete.
__device__ __forceinline__ void async_copies_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace expertplex::ptx
