#include "base/number_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace expertplex {
namespace {

TEST(Bf16, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(value))));
    } else {
      EXPECT_EQ(to_bf16(value).bits, bits);
    }
  }
}

TEST(Bf16, TiesGoToEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001u)).bits, 0x3F81);
}

TEST(Fp8E4m3, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = to_float(Fp8E4m3{static_cast<uint8_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_EQ(bits & 0x7F, 0x7Fu);
      EXPECT_TRUE(std::isnan(to_float(to_fp8_e4m3(value))));
    } else {
      EXPECT_EQ(to_fp8_e4m3(value).bits, bits);
    }
  }
}

TEST(Fp8E4m3, PicksTheNearestValue) {
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const float x = static_cast<float>((random.unit() - 0.5) *
                                       std::ldexp(1.0, static_cast<int>(random.between(-12, 10))));
    const float got = to_float(to_fp8_e4m3(x));
    float best = std::numeric_limits<float>::infinity();
    for (int bits = 0; bits < 256; ++bits) {
      const float value = to_float(Fp8E4m3{static_cast<uint8_t>(bits)});
      if (!std::isnan(value)) best = std::min(best, std::fabs(value - x));
    }
    EXPECT_EQ(std::fabs(got - x), best) << x;
  }
}

TEST(Fp8E4m3, SaturatesAndRoundsTiesToEven) {
  EXPECT_EQ(to_float(to_fp8_e4m3(1e9f)), 448.0f);
  EXPECT_EQ(to_float(to_fp8_e4m3(-std::numeric_limits<float>::infinity())), -448.0f);
  EXPECT_EQ(to_float(to_fp8_e4m3(17.0f)), 16.0f);
  EXPECT_EQ(to_float(to_fp8_e4m3(19.0f)), 20.0f);
  EXPECT_EQ(to_float(to_fp8_e4m3(0x1.0p-10f)), 0.0f);
}

TEST(Fp16, KnownValues) {
  EXPECT_EQ(to_float(Fp16{0x3C00}), 1.0f);
  EXPECT_EQ(to_float(Fp16{0xC000}), -2.0f);
  EXPECT_EQ(to_float(Fp16{0x0001}), 0x1.0p-24f);
  EXPECT_EQ(to_float(Fp16{0x7BFF}), 65504.0f);
  EXPECT_TRUE(std::isinf(to_float(Fp16{0x7C00})));
  EXPECT_TRUE(std::isnan(to_float(Fp16{0x7E00})));
}

}  // namespace
}  // namespace expertplex
