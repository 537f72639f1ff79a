// The AVX-512 (F, BW, DQ, VL) instruction wrapper: sixteen lanes. Only for files compiled for it
// (_avx512.cc).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/number_formats.h"

namespace expertplex::cpu {

struct SimdAvx512 {
  static constexpr int kWidth = 16;
  static constexpr int kRows = 4;  // rows and outputs of the micro-kernel: what the registers hold
  static constexpr int kOutputs = 4;
  using Vector = __m512;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector set1(float x) { return _mm512_set1_ps(x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Vector absolute(Vector a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
  static Vector keep_above(Vector x, Vector limit, Vector value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ), value);
  }

  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static Vector load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, int n, Vector v) { _mm512_mask_storeu_ps(p, first(n), v); }

  static Vector load(const Bf16* p) { return widen_bf16(_mm256_loadu_si256(cast256(p))); }
  static Vector load_first(const Bf16* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static Vector load(const Fp16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(cast256(p))); }
  static Vector load_first(const Fp16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  // e4m3 values times 2^-8: sign, exponent and mantissa bits moved to their places in binary16,
  // whose exponent bias is 8 larger; subnormals stay exact.
  static Vector load(const Fp8E4m3* p) {
    return widen_fp8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vector load_first(const Fp8E4m3* p, int n) {
    return widen_fp8(_mm_maskz_loadu_epi8(first(n), p));
  }

  static float sum(Vector v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));  // (0 + 2), (1 + 3)
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
  }
  static float largest(Vector v) { return _mm512_reduce_max_ps(v); }
  // The same tree as sum(), four at a time.
  static void sum4(const Vector (&v)[4], float* out) {
    const __m512 q = sum_quarters(v);
    const __m512 pairs = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));  // lanes (0 + 2), (1 + 3)
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xB1));
    const __m512i every_fourth =
        _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, sums)));
  }
  // out[r * stride + c] = sum(v[r][c]), the same tree, sixteen at a time.
  static void sum4x4(const Vector (&v)[4][4], float* out, int64_t stride) {
    const __m512 q0 = sum_quarters(v[0]), q1 = sum_quarters(v[1]);
    const __m512 q2 = sum_quarters(v[2]), q3 = sum_quarters(v[3]);
    const __m512 d01 = _mm512_add_ps(_mm512_unpacklo_ps(q0, q1), _mm512_unpackhi_ps(q0, q1));
    const __m512 d23 = _mm512_add_ps(_mm512_unpacklo_ps(q2, q3), _mm512_unpackhi_ps(q2, q3));
    const __m512d e01 = _mm512_castps_pd(d01), e23 = _mm512_castps_pd(d23);
    const __m512 by_column = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(e01, e23)),
                                           _mm512_castpd_ps(_mm512_unpackhi_pd(e01, e23)));
    const __m512i transpose =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512 by_row = _mm512_permutexvar_ps(transpose, by_column);
    _mm_storeu_ps(out, _mm512_castps512_ps128(by_row));
    _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(by_row, 1));
    _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(by_row, 2));
    _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(by_row, 3));
  }

  static Vector round(Vector x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector scale_by_power(Vector x, Vector n) { return _mm512_scalef_ps(x, n); }

  static void store_bf16(Bf16* p, Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
  }
  static void store_fp8(Fp8E4m3* p, Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF))), 20);
    const __m512i steps =  // subnormal: steps of 2^-9
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(512.0f)));
    const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x3C800000));
    __m512i code =
        _mm512_mask_mov_epi32(_mm512_sub_epi32(rounded, _mm512_set1_epi32(120 << 3)), small, steps);
    code = _mm512_min_epi32(code, _mm512_set1_epi32(0x7E));
    code = _mm512_mask_mov_epi32(code,
                                 _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000)),
                                 _mm512_set1_epi32(0x7F));
    code = _mm512_or_si512(code,
                           _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(code));
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  // Quarter i of the result: the four quarters of v[i] added, (0 + 2) + (1 + 3).
  static __m512 sum_quarters(const Vector (&v)[4]) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
                                    _mm512_shuffle_f32x4(v[0], v[1], 0xEE));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
                                    _mm512_shuffle_f32x4(v[2], v[3], 0xEE));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  }
  template <typename T>
  static const __m256i* cast256(const T* p) {
    return reinterpret_cast<const __m256i*>(p);
  }
  static Vector widen_bf16(__m256i raw) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static Vector widen_fp8(__m128i raw) {
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(raw), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xBF80))));
  }
};

}  // namespace expertplex::cpu
