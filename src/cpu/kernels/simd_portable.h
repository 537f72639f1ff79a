// The portable instruction wrapper: four lanes in the compiler's own vector type (SSE2, NEON, or
// scalar code). fma() rounds twice here; the other sets round once.
#pragma once

#include <cstdint>

#include "base/number_formats.h"

namespace expertplex::cpu {

struct SimdPortable {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 2;  // rows and outputs of the micro-kernel: what the registers hold
  static constexpr int kOutputs = 4;
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Bits __attribute__((vector_size(16)));

  static Vector zero() { return Vector{}; }
  static Vector set1(float x) { return Vector{x, x, x, x}; }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector subtract(Vector a, Vector b) { return a - b; }
  static Vector multiply(Vector a, Vector b) { return a * b; }
  static Vector divide(Vector a, Vector b) { return a / b; }
  static Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  static Vector max(Vector a, Vector b) { return select(a > b, a, b); }
  static Vector min(Vector a, Vector b) { return select(a < b, a, b); }
  static Vector absolute(Vector a) { return Vector(Bits(a) & 0x7FFFFFFF); }
  // x where x > limit, else 0, lane by lane, with `value` in place of x.
  static Vector keep_above(Vector x, Vector limit, Vector value) {
    return select(x > limit, value, zero());
  }

  static Vector load(const float* p) {
    Vector v{};
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static void store(float* p, Vector v) { __builtin_memcpy(p, &v, sizeof(v)); }
  static Vector load(const Bf16* p) {
    Bits v{};
    for (int i = 0; i < kWidth; ++i)
      v[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i].bits) << 16);
    return Vector(v);
  }
  static Vector load(const Fp16* p) {
    Vector v{};
    for (int i = 0; i < kWidth; ++i) v[i] = to_float(p[i]);
    return v;
  }
  // e4m3 values times 2^-8, as in the other sets.
  static Vector load(const Fp8E4m3* p) {
    Bits v{};
    for (int i = 0; i < kWidth; ++i) {
      const uint32_t code = p[i].bits;
      v[i] = static_cast<int32_t>(((code & 0x80u) << 24) | ((code & 0x7Fu) << 20));
    }
    // Exponent field as it is: 2^-120 of the value, exact also where that is subnormal.
    return Vector(v) * 0x1.0p112f;
  }
  // The first n < kWidth elements, zeros behind them.
  template <typename T>
  static Vector load_first(const T* p, int n) {
    T padded[kWidth] = {};
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return load(padded);
  }
  static void store_first(float* p, int n, Vector v) {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }

  static float sum(Vector v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float largest(Vector v) {
    float m = v[0];
    for (int i = 1; i < kWidth; ++i) m = v[i] > m ? v[i] : m;
    return m;
  }
  // out[i] = sum(v[i]).
  static void sum4(const Vector (&v)[4], float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(v[i]);
  }

  // Nearest integer, ties to even, for |x| < 2^22.
  static Vector round(Vector x) {
    const Vector magic = set1(0x1.8p23f);
    return (x + magic) - magic;
  }
  // x * 2^n for integral n in [-126, 127].
  static Vector scale_by_power(Vector x, Vector n) {
    return x * Vector((__builtin_convertvector(n, Bits) + 127) << 23);
  }

  static void store_bf16(Bf16* p, Vector v) {
    for (int i = 0; i < kWidth; ++i) p[i] = to_bf16(v[i]);
  }
  static void store_fp8(Fp8E4m3* p, Vector v) {
    for (int i = 0; i < kWidth; ++i) p[i] = to_fp8_e4m3(v[i]);
  }

 private:
  static Vector select(Bits mask, Vector a, Vector b) {
    return Vector((Bits(a) & mask) | (Bits(b) & ~mask));
  }
};

}  // namespace expertplex::cpu
