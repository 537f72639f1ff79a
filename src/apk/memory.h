// The memory policy that every shared word of the scheduling core is reached through, so that the
// same code runs in a GPU kernel (device_memory.h), in CPU threads under the thread sanitizer
// (host_memory.h) and under the exhaustive-interleaving explorer (tests/apk/model_memory.h).
//
// A policy Mem has these static functions; T is uint32_t or uint64_t, aligned to its size:
//   T    Mem::load(const T*, order, scope)
//   void Mem::store(T*, T, order, scope)
//   T    Mem::fetch_add(T*, T, order, scope)                      the value before
//   T    Mem::fetch_sub(T*, T, order, scope)                      the value before
//   bool Mem::compare_exchange(T*, T expected, T desired, order, scope)   strong
//   T    Mem::read(const T*), void Mem::write(T*, const T&)       plain data of any trivially
//        copyable type: never touched by two threads at once, because words above order the
//        accesses (a race here is a bug that the sanitizer and the explorer report)
//   void Mem::count(uint64_t*, uint64_t)                          statistics: relaxed, no control
//                                                                 flow may depend on it
//   auto Mem::begin_look(), void Mem::end_look(look, uint32_t result)
//        brackets a look at shared words of which only `result` is remembered. Nothing happens on
//        host and device; the explorer merges states that differ only in what was forgotten
//
// Order and scope are types, because the device built-ins want compile-time constants. Order says
// what travels with the word; scope says between whom: the threads of a CTA, the CTAs of a cluster
// (DSMEM), the device, or the system (host, other GPUs). On a CPU all scopes are one.
#pragma once

namespace expertplex::apk {

enum class Order { kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class Scope { kCta, kCluster, kDevice, kSystem };

template <Order kValue>
struct OrderTag {
  static constexpr Order value = kValue;
};
using Relaxed = OrderTag<Order::kRelaxed>;
using Acquire = OrderTag<Order::kAcquire>;
using Release = OrderTag<Order::kRelease>;
using AcquireRelease = OrderTag<Order::kAcquireRelease>;

template <Scope kValue>
struct ScopeTag {
  static constexpr Scope value = kValue;
};
using CtaScope = ScopeTag<Scope::kCta>;
using ClusterScope = ScopeTag<Scope::kCluster>;
using DeviceScope = ScopeTag<Scope::kDevice>;
using SystemScope = ScopeTag<Scope::kSystem>;

}  // namespace expertplex::apk
