// Time as integer nanoseconds. Only drivers (threads, benches, the API) read the clock; policies
// get `now` as an argument, so that a simulator can drive them.
#pragma once

#include <chrono>
#include <cstdint>

namespace expertplex {

using Nanoseconds = int64_t;

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kSecond = 1'000'000'000;

// Monotonic; the origin is arbitrary.
inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double to_seconds(Nanoseconds t) { return static_cast<double>(t) * 1e-9; }
inline double to_milliseconds(Nanoseconds t) { return static_cast<double>(t) * 1e-6; }

}  // namespace expertplex
