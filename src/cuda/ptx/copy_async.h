// Asynchronous copies of single threads (cp.async), from L2: what another SM has just written is
// seen.
#pragma once

#include <cstdint>

namespace expertplex::ptx {

// 16 bytes, both sides aligned to 16.
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from_global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from_global)
               : "memory");
}

// Until all copies of this thread are there.
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// This thread arrives on the mbarrier when all its copies so far are there; the barrier counts it
// like any other arrival.
__device__ __forceinline__ void copy_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace expertplex::ptx
