// The AVX2 + FMA + F16C instruction wrapper: eight lanes. Only for files compiled for it
// (_avx2.cc).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/number_formats.h"

namespace expertplex::cpu {

struct SimdAvx2 {
  static constexpr int kWidth = 8;
  static constexpr int kRows = 2;  // rows and outputs of the micro-kernel: what the registers hold
  static constexpr int kOutputs = 4;
  using Vector = __m256;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector set1(float x) { return _mm256_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static Vector absolute(Vector a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static Vector keep_above(Vector x, Vector limit, Vector value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ), value);
  }

  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
  static Vector load(const Bf16* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static Vector load(const Fp16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // e4m3 values times 2^-8: sign, exponent and mantissa bits moved to their places in binary16,
  // whose exponent bias is 8 larger; subnormals stay exact.
  static Vector load(const Fp8E4m3* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i half =
        _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xBF80)));
    return _mm256_cvtph_ps(half);
  }
  template <typename T>
  static Vector load_first(const T* p, int n) {
    T padded[kWidth] = {};
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return load(padded);
  }
  static void store_first(float* p, int n, Vector v) {
    float all[kWidth];
    store(all, v);
    for (int i = 0; i < n; ++i) p[i] = all[i];
  }

  static float sum(Vector v) {
    const __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));  // (0 + 2), (1 + 3)
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static float largest(Vector v) {
    const __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  // The same tree as sum(), four at a time.
  static void sum4(const Vector (&v)[4], float* out) {
    __m128 x[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm_add_ps(_mm256_castps256_ps128(v[i]), _mm256_extractf128_ps(v[i], 1));
    }
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(x[0], x[1]), _mm_unpackhi_ps(x[0], x[1]));
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(x[2], x[3]), _mm_unpackhi_ps(x[2], x[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
  }

  static Vector round(Vector x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector scale_by_power(Vector x, Vector n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }

  static void store_bf16(Bf16* p, Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    store_words(p, _mm256_blendv_epi8(rounded, quiet, is_nan));
  }
  static void store_fp8(Fp8E4m3* p, Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFFF))), 20);
    const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32(120 << 3));
    const __m256i steps =  // subnormal: steps of 2^-9
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(512.0f)));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), magnitude);
    __m256i code = _mm256_blendv_epi8(normal, steps, small);
    code = _mm256_min_epi32(code, _mm256_set1_epi32(0x7E));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7F), is_nan);
    code = _mm256_or_si256(code,
                           _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
    const __m128i words = narrow(code);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }

 private:
  static __m128i narrow(__m256i v) {  // eight dwords below 65536 to words
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  }
  static void store_words(Bf16* p, __m256i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v));
  }
};

}  // namespace expertplex::cpu
