// The number formats of linear_amx.h: transposes, e4m3 to BF16, floats split into two BF16.
// Included by one file only, which is compiled for AVX-512; everything is private to it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace expertplex::cpu {
namespace {

// Rows become columns.
inline void transpose16(__m512 (&v)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]);
    const __m512 d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
    t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(c)));
    t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
    t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b), _mm512_castps_pd(d)));
  }
  for (int i = 0; i < 4; ++i) {  // t[i + 4 q]: elements i, i + 4, ... of rows 4 q ... 4 q + 3
    const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
    v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

// 32 e4m3 codes to BF16, exactly: exponent and mantissa bits moved to their places, the exponent's
// bias raised by 120; the eight subnormals (m * 2^-9) by table. NaN (0x7F) counts as 480, as in the
// other sets.
inline __m512i fp8_to_bf16(__m256i codes) {
  alignas(64) static constexpr uint16_t kSubnormals[32] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                           0x3C00, 0x3C20, 0x3C40, 0x3C60};
  const __m512i wide = _mm512_cvtepi8_epi16(codes);  // the sign reaches bit 15
  const __mmask32 subnormal = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
  const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(0x07F0));
  __m512i value = _mm512_add_epi16(magnitude, _mm512_set1_epi16(120 << 7));
  value = _mm512_mask_permutexvar_epi16(value, subnormal, wide, _mm512_load_si512(kSubnormals));
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(value, wide, sign, kOrAnd);
}

// The upper halves of 16 even and 16 odd columns, as pairs.
inline __m512i pack_pairs(__m512 even, __m512 odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                 _mm512_castps_si512(odd));
}
inline __m512 upper_half(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}
// The nearest BF16 in the upper half.
inline __m512 round_up_half(__m512 x) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}
// What is missing from the upper half of `rounded`, rounded in turn.
inline __m512 rest(__m512 x, __m512 rounded) {
  return round_up_half(_mm512_sub_ps(x, upper_half(rounded)));
}

}  // namespace
}  // namespace expertplex::cpu
