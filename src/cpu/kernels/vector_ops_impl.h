// vector_ops.h and quantize.h as templates over an instruction wrapper S (see kernel_set.h).
#pragma once

#include <cstdint>

#include "base/number_formats.h"

namespace expertplex::cpu {

template <class S>
struct VectorOps {
  using Vector = typename S::Vector;
  static constexpr int kWidth = S::kWidth;

  // e^x to about 1 ulp; 0 below -87.3, largest finite power above 88.
  static Vector exp(Vector x) {
    const Vector clamped = S::min(S::max(x, S::set1(-87.3f)), S::set1(88.0f));
    const Vector n = S::round(S::multiply(clamped, S::set1(0x1.715476p0f)));
    // x - n ln 2, with ln 2 in two parts, the first exact for the n that occur.
    Vector r = S::fma(n, S::set1(-0x1.62e4p-1f), clamped);
    r = S::fma(n, S::set1(-0x1.7f7d1cp-20f), r);
    // Taylor terms up to r^7 / 7!: |r| <= 0.35 leaves an error below 1e-8.
    Vector p = S::set1(1.0f / 5040.0f);
    p = S::fma(p, r, S::set1(1.0f / 720.0f));
    p = S::fma(p, r, S::set1(1.0f / 120.0f));
    p = S::fma(p, r, S::set1(1.0f / 24.0f));
    p = S::fma(p, r, S::set1(1.0f / 6.0f));
    p = S::fma(p, r, S::set1(0.5f));
    p = S::fma(p, r, S::set1(1.0f));
    p = S::fma(p, r, S::set1(1.0f));
    return S::keep_above(x, S::set1(-87.3f), S::scale_by_power(p, n));
  }

  // Calls f(i, n) for each whole vector (n = kWidth) and once for a tail (n < kWidth).
  template <typename F>
  static void for_each_vector(int count, F f) {
    int i = 0;
    for (; i + kWidth <= count; i += kWidth) f(i, kWidth);
    if (i < count) f(i, count - i);
  }
  static Vector load(const float* p, int n) {
    return n == kWidth ? S::load(p) : S::load_first(p, n);
  }
  static void store(float* p, int n, Vector v) {
    if (n == kWidth) return S::store(p, v);
    S::store_first(p, n, v);
  }

  static void rms_norm(const float* x, const float* weight, int count, float eps, float* y) {
    Vector squares = S::zero();
    for_each_vector(count, [&](int i, int n) {
      const Vector v = load(x + i, n);
      squares = S::fma(v, v, squares);
    });
    const float mean = S::sum(squares) / static_cast<float>(count);
    const Vector factor = S::set1(1.0f / __builtin_sqrtf(mean + eps));
    for_each_vector(count, [&](int i, int n) {
      store(y + i, n, S::multiply(S::multiply(load(x + i, n), factor), load(weight + i, n)));
    });
  }

  static void rotate_half_split(float* head, const float* cosines, const float* sines, int half) {
    for_each_vector(half, [&](int j, int n) {
      const Vector a = load(head + j, n), b = load(head + half + j, n);
      const Vector c = load(cosines + j, n), s = load(sines + j, n);
      store(head + j, n, S::subtract(S::multiply(a, c), S::multiply(b, s)));
      store(head + half + j, n, S::add(S::multiply(b, c), S::multiply(a, s)));
    });
  }

  static void silu_multiply(const float* gate, const float* up, int count, float* y) {
    for_each_vector(count, [&](int i, int n) {
      const Vector g = load(gate + i, n);
      const Vector e = exp(S::subtract(S::zero(), g));
      const Vector silu = S::divide(g, S::add(S::set1(1.0f), e));
      store(y + i, n, S::multiply(silu, load(up + i, n)));
    });
  }

  static void sigmoid(const float* x, int count, float* y) {
    const Vector one = S::set1(1.0f);
    for_each_vector(count, [&](int i, int n) {
      const Vector e = exp(S::subtract(S::zero(), load(x + i, n)));
      store(y + i, n, S::divide(one, S::add(one, e)));
    });
  }

  static void add_scaled(float factor, const float* x, int count, float* y) {
    const Vector f = S::set1(factor);
    for_each_vector(
        count, [&](int i, int n) { store(y + i, n, S::fma(f, load(x + i, n), load(y + i, n))); });
  }

  static void multiply_by(float factor, int count, float* y) {
    const Vector f = S::set1(factor);
    for_each_vector(count, [&](int i, int n) { store(y + i, n, S::multiply(f, load(y + i, n))); });
  }

  static float largest(const float* x, int count) {
    Vector top = S::set1(-__builtin_inff());
    int i = 0;
    for (; i + kWidth <= count; i += kWidth) top = S::max(S::load(x + i), top);
    float result = S::largest(top);
    for (; i < count; ++i) result = x[i] > result ? x[i] : result;
    return result;
  }

  static int argmax(const float* x, int count) {
    const float top = largest(x, count);
    for (int i = 0; i < count; ++i) {
      if (x[i] == top) return i;
    }
    return -1;
  }

  static float softmax(const float* x, int count, float scale, float* y) {
    const Vector top = S::set1(largest(x, count)), factor = S::set1(scale);
    Vector sum = S::zero();
    for_each_vector(count, [&](int i, int n) {
      const Vector e = exp(S::multiply(factor, S::subtract(load(x + i, n), top)));
      store(y + i, n, e);
      sum = S::add(sum, n == kWidth ? e : S::load_first(y + i, n));
    });
    return S::sum(sum);
  }

  static void quantize_row(const float* x, int columns, Fp8E4m3* values, float* scales) {
    constexpr int kTile = 128;
    for (int begin = 0; begin < columns; begin += kTile) {
      Vector top = S::zero();
      for (int i = 0; i < kTile; i += kWidth) {
        top = S::max(S::absolute(S::load(x + begin + i)), top);
      }
      const float amax = S::largest(top);
      float scale = amax / kFp8E4m3Max;
      if (!(scale > 0.0f)) scale = 1.0f;
      scales[begin / kTile] = scale;
      const Vector divisor = S::set1(scale);
      for (int i = 0; i < kTile; i += kWidth) {
        S::store_fp8(values + begin + i, S::divide(S::load(x + begin + i), divisor));
      }
    }
  }

  template <typename T>
  static void widen(const T* source, int count, float* destination) {
    const Vector factor = S::set1(sizeof(T) == 1 ? 256.0f : 1.0f);
    for_each_vector(count, [&](int i, int n) {
      const Vector v = n == kWidth ? S::load(source + i) : S::load_first(source + i, n);
      store(destination + i, n, S::multiply(v, factor));
    });
  }

  static void float_to_bf16(const float* source, int count, Bf16* destination) {
    for_each_vector(count, [&](int i, int n) {
      if (n == kWidth) return S::store_bf16(destination + i, S::load(source + i));
      Bf16 padded[kWidth];
      S::store_bf16(padded, S::load_first(source + i, n));
      for (int j = 0; j < n; ++j) destination[i + j] = padded[j];
    });
  }
};

}  // namespace expertplex::cpu
