// vector_ops.h and quantize.h: against double references, bit for bit where the format decides.
#include <gtest/gtest.h>

#include <limits>

#include "cpu/kernels/quantize.h"
#include "cpu/kernels_reference.h"

namespace expertplex::cpu {
namespace {

using testing::random_values;

template <typename F>
void for_each_set(F f) {
  const KernelSets all = runnable_kernel_sets();
  for (int s = 0; s < all.count; ++s) {
    SCOPED_TRACE(all.sets[s]->name);
    f(*all.sets[s]);
  }
}

TEST(VectorOps, RmsNorm) {
  for_each_set([](const KernelSet& k) {
    Random random(1);
    for (const int n : {1, 7, 16, 128, 257, 3072}) {
      const auto x = random_values(random, n), w = random_values(random, n);
      std::vector<float> y(n);
      k.rms_norm(x.data(), w.data(), n, 1e-6f, y.data());
      double squares = 0;
      for (const float v : x) squares += static_cast<double>(v) * v;
      const double factor = 1.0 / std::sqrt(squares / n + 1e-6);
      for (int i = 0; i < n; ++i)
        ASSERT_NEAR(y[i], x[i] * factor * w[i], 2e-6 * std::abs(y[i]) + 1e-9);
    }
  });
}

TEST(VectorOps, RotateHalfSplit) {
  for_each_set([](const KernelSet& k) {
    Random random(2);
    for (const int half : {1, 8, 16, 20, 32, 64}) {
      auto head = random_values(random, 2 * half + 5);
      const auto before = head;
      const auto c = random_values(random, half), s = random_values(random, half);
      k.rotate_half_split(head.data(), c.data(), s.data(), half);
      for (int j = 0; j < half; ++j) {
        const double a = before[j], b = before[j + half];
        ASSERT_NEAR(head[j], a * c[j] - b * s[j], 2e-6);
        ASSERT_NEAR(head[j + half], b * c[j] + a * s[j], 2e-6);
      }
      for (int j = 2 * half; j < 2 * half + 5; ++j) ASSERT_EQ(head[j], before[j]);
    }
  });
}

TEST(VectorOps, SiluMultiply) {
  for_each_set([](const KernelSet& k) {
    std::vector<float> gate, up, y;
    for (float g = -120.0f; g < 120.0f; g += 0.37f) {
      gate.push_back(g);
      up.push_back(1.0f + g * 0.01f);
    }
    y.resize(gate.size());
    k.silu_multiply(gate.data(), up.data(), static_cast<int>(gate.size()), y.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      ASSERT_NEAR(y[i], expected, 1e-6 * std::abs(expected) + 1e-35) << gate[i];
    }
  });
}

TEST(VectorOps, SoftmaxNumerators) {
  for_each_set([](const KernelSet& k) {
    Random random(3);
    for (const int n : {1, 5, 16, 100, 4096}) {
      auto x = random_values(random, n, 4.0f);
      std::vector<float> y(n);
      const float sum = k.softmax(x.data(), n, 0.7f, y.data());
      double top = -1e30, expected_sum = 0;
      for (const float v : x) top = std::max<double>(top, v);
      for (int i = 0; i < n; ++i) {
        const double e = std::exp(0.7 * (x[i] - top));
        expected_sum += e;
        ASSERT_NEAR(y[i], e, 3e-6 * e + 1e-36);
      }
      ASSERT_NEAR(sum, expected_sum, 2e-6 * expected_sum);
    }
  });
}

TEST(VectorOps, ArgmaxTakesTheLowestOfEquals) {
  for_each_set([](const KernelSet& k) {
    Random random(4);
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(random.between(1, 100));
      for (auto& v : x) v = static_cast<float>(random.between(-3, 3));
      int expected = 0;
      for (size_t i = 1; i < x.size(); ++i) {
        if (x[i] > x[expected]) expected = static_cast<int>(i);
      }
      ASSERT_EQ(k.argmax(x.data(), static_cast<int>(x.size())), expected);
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> x(40, nan);
    EXPECT_EQ(k.argmax(x.data(), 40), -1);
    x[33] = -5.0f;
    EXPECT_EQ(k.argmax(x.data(), 40), 33);
    const std::vector<float> lost(40, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(k.argmax(lost.data(), 40), 0);
  });
}

TEST(VectorOps, AddScaled) {
  for_each_set([](const KernelSet& k) {
    Random random(5);
    const auto x = random_values(random, 77), before = random_values(random, 77);
    auto y = before;
    k.add_scaled(0.3f, x.data(), 77, y.data());
    for (int i = 0; i < 77; ++i) ASSERT_NEAR(y[i], before[i] + 0.3 * x[i], 1e-6);
  });
}

TEST(Quantize, EveryFp8CodeWidensExactly) {
  for_each_set([](const KernelSet& k) {
    std::vector<Fp8E4m3> codes;
    for (int c = 0; c < 256; ++c) {
      if ((c & 0x7F) != 0x7F) codes.push_back({static_cast<uint8_t>(c)});
    }
    std::vector<float> y(codes.size());
    k.widen_fp8(codes.data(), static_cast<int>(codes.size()), y.data());
    for (size_t i = 0; i < codes.size(); ++i)
      EXPECT_EQ(y[i], to_float(codes[i])) << int{codes[i].bits};
  });
}

TEST(Quantize, EveryBf16AndFp16WidensExactly) {
  for_each_set([](const KernelSet& k) {
    std::vector<Bf16> b(65536);
    std::vector<Fp16> h(65536);
    for (int i = 0; i < 65536; ++i) b[i].bits = h[i].bits = static_cast<uint16_t>(i);
    std::vector<float> wide_b(65536), wide_h(65536);
    k.widen_bf16(b.data(), 65536, wide_b.data());
    k.widen_fp16(h.data(), 65536, wide_h.data());
    for (int i = 0; i < 65536; ++i) {
      const float eb = to_float(b[i]), eh = to_float(h[i]);
      ASSERT_TRUE(wide_b[i] == eb || (std::isnan(wide_b[i]) && std::isnan(eb))) << i;
      ASSERT_TRUE(wide_h[i] == eh || (std::isnan(wide_h[i]) && std::isnan(eh))) << i;
    }
  });
}

TEST(Quantize, FloatToBf16RoundsAsBase) {
  for_each_set([](const KernelSet& k) {
    Random random(6);
    std::vector<float> x(10007);
    for (auto& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    std::vector<Bf16> y(x.size());
    k.float_to_bf16(x.data(), static_cast<int>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << x[i];
  });
}

TEST(Quantize, RowsAreScaledAndRoundedAsStated) {
  for_each_set([](const KernelSet& k) {
    Random random(7);
    for (int round = 0; round < 300; ++round) {
      const float size = std::ldexp(1.0f, static_cast<int>(random.between(-130, 100)));
      auto x = random_values(random, 256, size);
      if (round % 10 == 0) std::fill(x.begin(), x.begin() + 128, 0.0f);
      // Many small values beside a large one: subnormal codes.
      if (round % 3 == 0) {
        for (size_t i = 1; i < x.size(); ++i) x[i] *= 1e-3f * static_cast<float>(random.unit());
      }
      std::vector<Fp8E4m3> values(256);
      float scales[2];
      k.quantize_row(x.data(), 256, values.data(), scales);
      for (int tile = 0; tile < 2; ++tile) {
        float amax = 0;
        for (int i = 0; i < 128; ++i) amax = std::max(amax, std::abs(x[tile * 128 + i]));
        const float scale = amax / 448.0f;
        ASSERT_EQ(scales[tile], scale > 0 ? scale : 1.0f);
        for (int i = tile * 128; i < tile * 128 + 128; ++i) {
          ASSERT_EQ(values[i].bits, to_fp8_e4m3(x[i] / scales[tile]).bits) << x[i] << "/" << scale;
        }
      }
    }
  });
}

}  // namespace
}  // namespace expertplex::cpu
