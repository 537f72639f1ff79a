// Memory policy (memory.h) of CPU threads: std::atomic_ref over plain words. Scopes mean nothing
// here. Host only.
#pragma once

#include <atomic>
#include <cstdint>

#include "apk/memory.h"

namespace expertplex::apk {

class HostMemory {
 public:
  template <typename T, typename O, typename S>
  static T load(const T* word, O, S) {
    return std::atomic_ref<T>(*const_cast<T*>(word)).load(std_order<O>());
  }
  template <typename T, typename O, typename S>
  static void store(T* word, T value, O, S) {
    std::atomic_ref<T>(*word).store(value, std_order<O>());
  }
  template <typename T, typename O, typename S>
  static T fetch_add(T* word, T value, O, S) {
    return std::atomic_ref<T>(*word).fetch_add(value, std_order<O>());
  }
  template <typename T, typename O, typename S>
  static T fetch_sub(T* word, T value, O, S) {
    return std::atomic_ref<T>(*word).fetch_sub(value, std_order<O>());
  }
  template <typename T, typename O, typename S>
  static bool compare_exchange(T* word, T expected, T desired, O, S) {
    return std::atomic_ref<T>(*word).compare_exchange_strong(expected, desired, std_order<O>(),
                                                             std::memory_order_relaxed);
  }
  template <typename T>
  static T read(const T* data) {
    return *data;
  }
  template <typename T>
  static void write(T* data, const T& value) {
    *data = value;
  }
  static void count(uint64_t* counter, uint64_t value) {
    std::atomic_ref<uint64_t>(*counter).fetch_add(value, std::memory_order_relaxed);
  }
  static uint32_t begin_look() { return 0; }
  static void end_look(uint32_t, uint32_t) {}

 private:
  template <typename O>
  static constexpr std::memory_order std_order() {
    switch (O::value) {
      case Order::kRelaxed:
        return std::memory_order_relaxed;
      case Order::kAcquire:
        return std::memory_order_acquire;
      case Order::kRelease:
        return std::memory_order_release;
      case Order::kAcquireRelease:
        break;
    }
    return std::memory_order_acq_rel;
  }
};

}  // namespace expertplex::apk
