// Fences between proxies and scopes.
#pragma once

namespace expertplex::ptx {

// Generic-proxy accesses before it are ordered with async-proxy (TMA) accesses after it, in all
// state spaces. A reader that acquired a flag with plain loads needs it before its TMA loads.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Release and acquire of system scope, for the relaxed accesses around it.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace expertplex::ptx
