// Slow and obvious twins of the CPU kernels, in double, and random inputs for them.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "base/number_formats.h"
#include "base/random.h"
#include "cpu/kernels/kernel_set.h"

namespace expertplex::cpu::testing {

// Roughly normal: the sum of three uniform draws.
inline float random_value(Random& random) {
  return static_cast<float>((random.unit() + random.unit() + random.unit()) * 2.0 - 3.0);
}

inline std::vector<float> random_values(Random& random, size_t count, float scale = 1.0f) {
  std::vector<float> values(count);
  for (auto& v : values) v = scale * random_value(random);
  return values;
}

inline Fp16 to_fp16(
    float x) {  // exact where x has at most 11 significant bits and is normal in F16
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23) & 0xFF;
  if (exponent < 113) return {static_cast<uint16_t>((bits >> 16) & 0x8000)};
  return {static_cast<uint16_t>(((bits >> 16) & 0x8000) | ((exponent - 112) << 10) |
                                ((bits >> 13) & 0x3FF))};
}

// A weight matrix of any stored type, with its values in double beside it.
struct TestWeight {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  std::vector<double> values;  // scales applied
  LinearWeight weight;
};

inline TestWeight random_weight(Random& random, DataType type, int out, int in) {
  TestWeight w;
  const size_t count = static_cast<size_t>(out) * in;
  w.bytes.resize(count * data_type_bytes(type));
  w.values.resize(count);
  const int tiles = (in + 127) / 128;
  if (type == DataType::kFp8E4m3) {
    w.scales.resize(static_cast<size_t>((out + 127) / 128) * tiles);
    for (auto& s : w.scales) s = static_cast<float>(0.001 + random.unit());
  }
  for (size_t i = 0; i < count; ++i) {
    const float x = random_value(random);
    if (type == DataType::kF32) {
      std::memcpy(&w.bytes[i * 4], &x, 4);
      w.values[i] = x;
    } else if (type == DataType::kBf16) {
      const Bf16 b = to_bf16(x);
      std::memcpy(&w.bytes[i * 2], &b, 2);
      w.values[i] = to_float(b);
    } else if (type == DataType::kF16) {
      const Fp16 h = to_fp16(x);
      std::memcpy(&w.bytes[i * 2], &h, 2);
      w.values[i] = to_float(h);
    } else {
      // Every code that is a number, subnormals included.
      uint8_t code = static_cast<uint8_t>(random.below(256));
      if ((code & 0x7F) == 0x7F) code ^= 1;
      w.bytes[i] = code;
      const int tile = static_cast<int>(i) / in / 128 * tiles + static_cast<int>(i) % in / 128;
      w.values[i] = static_cast<double>(to_float(Fp8E4m3{code})) * w.scales[tile];
    }
  }
  w.weight =
      LinearWeight{type, out, in, w.bytes.data(), w.scales.empty() ? nullptr : w.scales.data()};
  return w;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace expertplex::cpu::testing
