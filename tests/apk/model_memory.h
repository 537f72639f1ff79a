// Memory policy (apk/memory.h) of the explorer: every atomic access is a place where another fiber
// may go first; plain accesses are checked for order. Statistics are dropped.
//
// Fault lets a test break one thing: a broken twin that the explorer must catch.
#pragma once

#include <cstdint>

#include "apk/explorer.h"
#include "apk/memory.h"

namespace expertplex::apk {

enum class Fault {
  kNone,
  kSplitClaim,         // fetch_sub as a load and a store
  kSplitCommit,        // fetch_add as a load and a store
  kLostRelease,        // stores and RMWs never release
  kLostAcquire,        // loads and RMWs never acquire
  kLostCommitRelease,  // fetch_add never releases
  kSplitRole,          // compare_exchange as a load and a store
};

template <Fault kFault>
class FaultyMemory {
 public:
  template <typename T, typename O, typename S>
  static T load(const T* word, O, S) {
    Explorer& explorer = Explorer::current();
    explorer.before_access(word, Access::kLoad);
    const T value = *word;
    explorer.after_load(word, value, effective<O>());
    return value;
  }
  template <typename T, typename O, typename S>
  static void store(T* word, T value, O, S) {
    Explorer& explorer = Explorer::current();
    explorer.before_access(word, Access::kStore);
    explorer.change(word, sizeof(T), [&] { *word = value; });
    explorer.after_store(word, value, effective<O>());
  }
  template <typename T, typename O, typename S>
  static T fetch_add(T* word, T value, O order, [[maybe_unused]] S scope) {
    if constexpr (kFault == Fault::kSplitCommit) {
      const T before = load(word, Acquire{}, scope);
      store(word, static_cast<T>(before + value), Release{}, scope);
      return before;
    }
    if constexpr (kFault == Fault::kLostCommitRelease) {
      return modify(
          word, [&](T before) { return static_cast<T>(before + value); }, Acquire{});
    }
    return modify(
        word, [&](T before) { return static_cast<T>(before + value); }, order);
  }
  template <typename T, typename O, typename S>
  static T fetch_sub(T* word, T value, O order, [[maybe_unused]] S scope) {
    if constexpr (kFault == Fault::kSplitClaim) {
      const T before = load(word, Acquire{}, scope);
      store(word, static_cast<T>(before - value), Release{}, scope);
      return before;
    }
    return modify(
        word, [&](T before) { return static_cast<T>(before - value); }, order);
  }
  template <typename T, typename O, typename S>
  static bool compare_exchange(T* word, T expected, T desired, O, [[maybe_unused]] S scope) {
    if constexpr (kFault == Fault::kSplitRole) {
      if (load(word, Acquire{}, scope) != expected) return false;
      store(word, desired, Release{}, scope);
      return true;
    }
    Explorer& explorer = Explorer::current();
    explorer.before_access(word, Access::kModify);
    const T before = *word;
    if (before != expected) {
      explorer.after_load(word, before, Order::kRelaxed);
      return false;
    }
    explorer.change(word, sizeof(T), [&] { *word = desired; });
    explorer.after_rmw(word, desired, effective<O>(), before);
    return true;
  }
  template <typename T>
  static T read(const T* data) {
    Explorer::current().plain_read(data, sizeof(T));
    return *data;
  }
  template <typename T>
  static void write(T* data, const T& value) {
    Explorer& explorer = Explorer::current();
    explorer.plain_write(data);
    explorer.change(data, sizeof(T), [&] { *data = value; });
  }
  static void count(uint64_t*, uint64_t) {}
  static uint64_t begin_look() { return Explorer::current().mark(); }
  static void end_look(uint64_t look, uint32_t result) {
    Explorer::current().retry(combine_hash(look, result));
  }

 private:
  template <typename O>
  static constexpr Order effective() {
    constexpr Order order = O::value;
    if (kFault == Fault::kLostRelease) {
      if (order == Order::kRelease) return Order::kRelaxed;
      if (order == Order::kAcquireRelease) return Order::kAcquire;
    }
    if (kFault == Fault::kLostAcquire) {
      if (order == Order::kAcquire) return Order::kRelaxed;
      if (order == Order::kAcquireRelease) return Order::kRelease;
    }
    return order;
  }
  template <typename T, typename F, typename O>
  static T modify(T* word, F change, O) {
    Explorer& explorer = Explorer::current();
    explorer.before_access(word, Access::kModify);
    const T before = *word;
    const T after = change(before);
    explorer.change(word, sizeof(T), [&] { *word = after; });
    explorer.after_rmw(word, after, effective<O>(), before);
    return before;
  }
};

using ModelMemory = FaultyMemory<Fault::kNone>;

}  // namespace expertplex::apk
