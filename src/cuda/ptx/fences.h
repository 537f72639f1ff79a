// Fences between proxies and scopes.
#pragma once

namespace expertplex::ptx {

// Generic-proxy accesses to global memory before it are ordered with async-proxy (TMA) accesses
// after it. A reader that acquired a flag with plain loads needs it before its TMA loads. Without a
// state space it is a MEMBAR of device scope too: a microsecond.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Release of system scope, for the relaxed stores behind it: a MEMBAR, a microsecond.
__device__ __forceinline__ void fence_release_system() {
  asm volatile("fence.release.sys;" ::: "memory");
}

// Acquire of system scope, for the relaxed loads before it: it only empties the SM's L1 cache.
__device__ __forceinline__ void fence_acquire_system() {
  asm volatile("fence.acquire.sys;" ::: "memory");
}

}  // namespace expertplex::ptx
