// Fences between proxies and scopes.
#pragma once

namespace expertplex::ptx {

// Generic-proxy accesses to global memory before it are ordered with async-proxy (TMA) accesses
// after it. A reader that acquired a flag with plain loads needs it before its TMA loads. Without a
// state space it is a MEMBAR of device scope too: a microsecond.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Release and acquire of system scope, for the relaxed accesses around it.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace expertplex::ptx
