// Memory policy (memory.h) of GPU code, on nvcc's __nv_atomic built-ins: they know the cluster
// scope, which libcu++ lacks. Words may lie in global, shared or distributed shared memory (generic
// addresses). Device only; empty for a host compiler.
//
// Orders here cover the generic proxy. Who reads with TMA what another wrote with plain stores (or
// the other way round) adds its proxy fence, as always.
#pragma once

#if defined(__CUDACC__)

#include <cstdint>

#include "apk/memory.h"

namespace expertplex::apk {

// The built-ins take order and scope as literals only, so each call is spelled once per scope.
#define EXPERTPLEX_BY_SCOPE(S, CALL)                                          \
  if constexpr (S::value == Scope::kCta) CALL(__NV_THREAD_SCOPE_BLOCK);       \
  if constexpr (S::value == Scope::kCluster) CALL(__NV_THREAD_SCOPE_CLUSTER); \
  if constexpr (S::value == Scope::kDevice) CALL(__NV_THREAD_SCOPE_DEVICE);   \
  if constexpr (S::value == Scope::kSystem) CALL(__NV_THREAD_SCOPE_SYSTEM)

class DeviceMemory {
 public:
  template <typename T, typename O, typename S>
  static __device__ T load(const T* word, O, S) {
    static_assert(O::value == Order::kRelaxed || O::value == Order::kAcquire);
    T* from = const_cast<T*>(word);
    T value{};
#define EXPERTPLEX_LOAD_RELAXED(scope) value = __nv_atomic_load_n(from, __NV_ATOMIC_RELAXED, scope)
#define EXPERTPLEX_LOAD_ACQUIRE(scope) value = __nv_atomic_load_n(from, __NV_ATOMIC_ACQUIRE, scope)
    if constexpr (O::value == Order::kRelaxed) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_LOAD_RELAXED);
    } else {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_LOAD_ACQUIRE);
    }
#undef EXPERTPLEX_LOAD_RELAXED
#undef EXPERTPLEX_LOAD_ACQUIRE
    return value;
  }

  template <typename T, typename O, typename S>
  static __device__ void store(T* word, T value, O, S) {
    static_assert(O::value == Order::kRelaxed || O::value == Order::kRelease);
#define EXPERTPLEX_STORE_RELAXED(scope) __nv_atomic_store_n(word, value, __NV_ATOMIC_RELAXED, scope)
#define EXPERTPLEX_STORE_RELEASE(scope) __nv_atomic_store_n(word, value, __NV_ATOMIC_RELEASE, scope)
    if constexpr (O::value == Order::kRelaxed) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_STORE_RELAXED);
    } else {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_STORE_RELEASE);
    }
#undef EXPERTPLEX_STORE_RELAXED
#undef EXPERTPLEX_STORE_RELEASE
  }

  template <typename T, typename O, typename S>
  static __device__ T fetch_add(T* word, T value, O, S) {
    T before{};
#define EXPERTPLEX_ADD_RELAXED(scope) \
  before = __nv_atomic_fetch_add(word, value, __NV_ATOMIC_RELAXED, scope)
#define EXPERTPLEX_ADD_ACQUIRE(scope) \
  before = __nv_atomic_fetch_add(word, value, __NV_ATOMIC_ACQUIRE, scope)
#define EXPERTPLEX_ADD_RELEASE(scope) \
  before = __nv_atomic_fetch_add(word, value, __NV_ATOMIC_RELEASE, scope)
#define EXPERTPLEX_ADD_ACQUIRE_RELEASE(scope) \
  before = __nv_atomic_fetch_add(word, value, __NV_ATOMIC_ACQ_REL, scope)
    if constexpr (O::value == Order::kRelaxed) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_ADD_RELAXED);
    } else if constexpr (O::value == Order::kAcquire) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_ADD_ACQUIRE);
    } else if constexpr (O::value == Order::kRelease) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_ADD_RELEASE);
    } else {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_ADD_ACQUIRE_RELEASE);
    }
#undef EXPERTPLEX_ADD_RELAXED
#undef EXPERTPLEX_ADD_ACQUIRE
#undef EXPERTPLEX_ADD_RELEASE
#undef EXPERTPLEX_ADD_ACQUIRE_RELEASE
    return before;
  }

  template <typename T, typename O, typename S>
  static __device__ T fetch_sub(T* word, T value, O order, S scope) {
    return fetch_add(word, static_cast<T>(T{0} - value), order, scope);
  }

  template <typename T, typename O, typename S>
  static __device__ bool compare_exchange(T* word, T expected, T desired, O, S) {
    static_assert(O::value == Order::kRelaxed || O::value == Order::kAcquire);
    bool done = false;
#define EXPERTPLEX_CAS_RELAXED(scope)                                                         \
  done = __nv_atomic_compare_exchange_n(word, &expected, desired, false, __NV_ATOMIC_RELAXED, \
                                        __NV_ATOMIC_RELAXED, scope)
#define EXPERTPLEX_CAS_ACQUIRE(scope)                                                         \
  done = __nv_atomic_compare_exchange_n(word, &expected, desired, false, __NV_ATOMIC_ACQUIRE, \
                                        __NV_ATOMIC_RELAXED, scope)
    if constexpr (O::value == Order::kRelaxed) {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_CAS_RELAXED);
    } else {
      EXPERTPLEX_BY_SCOPE(S, EXPERTPLEX_CAS_ACQUIRE);
    }
#undef EXPERTPLEX_CAS_RELAXED
#undef EXPERTPLEX_CAS_ACQUIRE
    return done;
  }

  template <typename T>
  static __device__ T read(const T* data) {
    return *data;
  }
  template <typename T>
  static __device__ void write(T* data, const T& value) {
    *data = value;
  }
  // The result is unused, so this is one RED: nobody waits for it.
  static __device__ void count(uint64_t* counter, uint64_t value) {
    __nv_atomic_add(counter, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
  }
  static __device__ uint32_t begin_look() { return 0; }
  static __device__ void end_look(uint32_t, uint32_t) {}
};

#undef EXPERTPLEX_BY_SCOPE

}  // namespace expertplex::apk

#endif
