// BF16, FP16 and FP8 e4m3fn as bit patterns, with conversions to and from float. Rounding is to
// nearest, ties to even, as PyTorch and the GPU do. e4m3fn has no infinity: NaN is 0x7F / 0xFF, the
// largest value 448; conversion saturates.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace expertplex {

constexpr float kFp8E4m3Max = 448.0f;

struct Bf16 {
  uint16_t bits = 0;
};
struct Fp16 {
  uint16_t bits = 0;
};
struct Fp8E4m3 {
  uint8_t bits = 0;
};
static_assert(sizeof(Bf16) == 2 && sizeof(Fp16) == 2 && sizeof(Fp8E4m3) == 1);

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
    return {static_cast<uint16_t>((bits >> 16) | 0x40)};  // NaN
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

inline float to_float(Fp16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = x.bits & 0x3FFu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

inline float to_float(Fp8E4m3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24;
  const uint32_t exponent = (x.bits >> 3) & 0xFu;
  const uint32_t mantissa = x.bits & 0x7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-9f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

inline Fp8E4m3 to_fp8_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint8_t>(sign | 0x7F)};
  if (magnitude >= 0x43E00000u) return {static_cast<uint8_t>(sign | 0x7E)};  // >= 448: saturate
  if (magnitude < 0x3C800000u) {  // below 2^-6: subnormal, steps of 2^-9
    const float steps = std::bit_cast<float>(magnitude) * 512.0f;
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(steps)))};
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return {static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code))};
}

}  // namespace expertplex
