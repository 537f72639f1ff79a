// A small seeded generator (splitmix64) with the few draws that the project needs. The same seed
// gives the same numbers on every machine, unlike the distributions of <random>.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace expertplex {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound). The bias of the multiply-shift is below bound / 2^64.
  uint64_t below(uint64_t bound) {
    EXPERTPLEX_CHECK(bound > 0);
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

  // Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }

  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace expertplex
