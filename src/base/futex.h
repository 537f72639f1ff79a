// Parking on a 32-bit word (Linux futex), with a limit. The word may lie in memory shared between
// processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace expertplex {

// Sleeps while `word` holds `expected`, until futex_wake, a signal, or `limit` passes. May return
// early: the caller looks again.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Nanoseconds limit);

// Wakes all sleepers of `word`.
void futex_wake_all(const std::atomic<uint32_t>& word);

// Tells the core that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace expertplex
