// linear() on AMX, for BF16 and FP8 weights, which are exact in BF16. Activations are not: each x
// is split into hi + lo, both BF16, which keeps 16 bits of it (relative error below 2^-17). The two
// sums over K are kept apart and added at the end.
//
// Weights are the left operand (16 outputs x 32 columns, as they lie in memory), activations the
// right one ([32 columns / 2][16 rows] pairs), so a product tile is [outputs][rows]. Up to 8 rows,
// hi and lo share one tile: eight columns each. An element's bits do not depend on its place in a
// tile.
//
// Scales: x is multiplied by them before it is split, as in linear_impl.h.
//
// Included by one file only, which is compiled for AMX and AVX-512; everything is
// private to it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/number_formats.h"
#include "cpu/kernels/amx_formats.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/linear_scratch.h"

namespace expertplex::cpu {
namespace {

constexpr int kAmxRows = 16;       // rows of x in a tile
constexpr int kAmxSharedRows = 8;  // up to that many, hi and lo share a tile
constexpr int kAmxOutputs = 16;    // outputs in a tile
constexpr int kAmxColumns = 32;    // columns of x and W in a tile
constexpr int kAmxBlocks = 4;      // at most: tiles of outputs computed side by side
constexpr int kAmxStep = 4;        // column tiles widened at a time
constexpr int kAmxTileBytes = 1024;
constexpr int kAmxMaxColumns = 4096;  // longer rows do not fit the scratch memory
static_assert(kAmxBlocks * kAmxOutputs * kAmxMaxColumns * 2 <= kLinearPanelFloats * 4);
static_assert(kAmxRows * kAmxMaxColumns <= kLinearRowFloats);

// One call of linear(): all rows in chunks, of these all outputs in stripes that share scales, of
// these panels of a few tiles of outputs.
class AmxLinear {
 public:
  static bool covers(const LinearWeight& weight) {
    return (weight.type == DataType::kBf16 || weight.type == DataType::kFp8E4m3) &&
           weight.in_features <= kAmxMaxColumns;
  }

  AmxLinear(const LinearInput& x, const LinearWeight& weight, const LinearScratch& scratch)
      : x_(x),
        weight_(weight),
        scratch_(scratch),
        columns_(weight.in_features),
        column_tiles_((columns_ + kAmxColumns - 1) / kAmxColumns) {}

  void run(int rows, int first, int count, float* y, int64_t y_stride) {
    y_stride_ = y_stride;
    configure_tiles();
    const int step = kLinearRowFloats / padded_columns() / kAmxRows * kAmxRows;
    for (int r = 0; r < rows; r += step) {
      row_chunk(r, rows - r < step ? rows - r : step, first, count, y + r * y_stride);
    }
    _tile_release();
  }

 private:
  // Product tiles are 0 to 3, weights 4, 5 and 7, activations 6 and 7.
  static void configure_tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    static_assert(sizeof(config) == 64);
    _tile_loadconfig(&config);
  }

  static bool shared(int tile_rows) { return tile_rows <= kAmxSharedRows; }
  int padded_columns() const { return column_tiles_ * kAmxColumns; }
  void row_chunk(int first_row, int rows, int first, int count, float* y) {
    constexpr int kStripe = 128;  // outputs that share scales
    transpose_rows(first_row, rows);
    if (!weight_.scales) {
      make_tiles(rows, nullptr);
      return stripe(rows, first, count, y);
    }
    const int scale_tiles = (columns_ + kStripe - 1) / kStripe;
    for (int n = first; n < first + count;) {
      const int left = kStripe - n % kStripe;
      const int outputs = left < first + count - n ? left : first + count - n;
      make_tiles(rows, weight_.scales + static_cast<int64_t>(n / kStripe) * scale_tiles);
      stripe(rows, n, outputs, y + (n - first));
      n += outputs;
    }
  }

  // scratch.rows: per 16 rows [padded_columns][16] floats, times the activation's scales; zeros
  // where there is no row or column. Rows that share a tile stand in both halves.
  void transpose_rows(int first_row, int rows) const {
    float* out = scratch_.rows;
    for (int r = 0; r < rows; r += kAmxRows) {
      const int tile_rows = rows - r < kAmxRows ? rows - r : kAmxRows;
      const int repeat = shared(tile_rows) ? kAmxSharedRows : kAmxRows;
      for (int k = 0; k < padded_columns(); k += 16, out += 256) {
        const int left = columns_ - k;
        const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1u;
        __m512 v[16];
        for (int i = 0; i < 16; ++i) {
          const int row = i % repeat;
          v[i] = _mm512_setzero_ps();
          if (row >= tile_rows) continue;
          const int64_t at = first_row + r + row;
          v[i] = _mm512_maskz_loadu_ps(mask, x_.data + at * x_.row_stride + k);
          if (x_.scales && mask) {
            v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(x_.scales[at * x_.scale_stride + k / 128]));
          }
        }
        transpose16(v);
        for (int i = 0; i < 16; ++i) _mm512_store_ps(out + 16 * i, v[i]);
      }
    }
  }

  // scratch.tiles: per 16 rows and 32 columns one tile of hi and one of lo, or one that they share.
  void make_tiles(int rows, const float* scales) const {
    const float* in = scratch_.rows;
    char* out = reinterpret_cast<char*>(scratch_.tiles);
    for (int r = 0; r < rows; r += kAmxRows) {
      const bool share = shared(rows - r);
      for (int k = 0; k < padded_columns(); k += kAmxColumns) {
        const __m512 scale = _mm512_set1_ps(scales ? scales[k / 128] : 1.0f);
        for (int pair = 0; pair < kAmxColumns / 2; ++pair, in += 32, out += 64) {
          const __m512 even = _mm512_mul_ps(_mm512_load_ps(in), scale);
          const __m512 odd = _mm512_mul_ps(_mm512_load_ps(in + 16), scale);
          const __m512 r_even = round_up_half(even), r_odd = round_up_half(odd);
          const __m512i high = pack_pairs(r_even, r_odd);
          const __m512i low = pack_pairs(rest(even, r_even), rest(odd, r_odd));
          if (share) {
            _mm512_store_si512(out, _mm512_mask_blend_epi32(0xFF00, high, low));
          } else {
            _mm512_store_si512(out, high);
            _mm512_store_si512(out + kAmxTileBytes, low);
          }
        }
        if (!share) out += kAmxTileBytes;
      }
    }
  }

  void stripe(int rows, int first, int outputs, float* y) {
    // Tiles of hi and lo need a product tile each, so only half as many outputs fit.
    const int panel = (shared(rows) ? kAmxBlocks : kAmxBlocks / 2) * kAmxOutputs;
    // Weights that are used once only pass through the innermost cache.
    kept_columns_ = rows > kAmxRows ? column_tiles_ : kAmxStep;
    for (int n = 0; n < outputs; n += panel) {
      multiply_panel(rows, first + n, outputs - n < panel ? outputs - n : panel, y + n);
    }
  }

  // One panel of outputs, whose weights are widened for the first rows and kept for the others.
  void multiply_panel(int rows, int first, int outputs, float* y) {
    const char* tiles = reinterpret_cast<const char*>(scratch_.tiles);
    const int blocks = (outputs + kAmxOutputs - 1) / kAmxOutputs;
    const int64_t stride = static_cast<int64_t>(kept_columns_) * kAmxTileBytes;
    for (int r = 0; r < rows; r += kAmxRows, y += kAmxRows * y_stride_) {
      const int tile_rows = rows - r < kAmxRows ? rows - r : kAmxRows;
      const bool share = shared(tile_rows);
      const int x_bytes = share ? kAmxTileBytes : 2 * kAmxTileBytes;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int k = 0; k < column_tiles_; k += kAmxStep) {
        const int count = column_tiles_ - k < kAmxStep ? column_tiles_ - k : kAmxStep;
        if (r == 0) widen(first, outputs, k, count);
        const char* const w = panel_tile(0, k);
        const char* const x = tiles + static_cast<int64_t>(k) * x_bytes;
        share ? multiply_shared(w, stride, x, count, blocks)
              : multiply_split(w, stride, x, count, blocks);
      }
      _tile_stored(0, product_[0], 64);
      _tile_stored(1, product_[1], 64);
      _tile_stored(2, product_[2], 64);
      _tile_stored(3, product_[3], 64);
      for (int b = 0; b < blocks; ++b) {
        const int left = outputs - b * kAmxOutputs;
        float* const to = y + b * kAmxOutputs;
        share ? store_shared(product_[b], tile_rows, to, y_stride_, left)
              : store_split(product_[2 * b], product_[2 * b + 1], tile_rows, to, y_stride_, left);
      }
      tiles += static_cast<int64_t>(column_tiles_) * x_bytes;
    }
  }

  // scratch.panel: per 16 outputs and 32 columns one tile.
  char* panel_tile(int block, int column_tile) const {
    const int64_t tile = static_cast<int64_t>(block) * kept_columns_ + column_tile % kept_columns_;
    return reinterpret_cast<char*>(scratch_.panel) + tile * kAmxTileBytes;
  }

  void widen(int first, int outputs, int column_tile, int count) const {
    if (weight_.type == DataType::kBf16) {
      widen_as<Bf16>(first, outputs, column_tile, count);
    } else {
      widen_as<Fp8E4m3>(first, outputs, column_tile, count);
    }
  }

  template <typename W>
  void widen_as(int first, int outputs, int column_tile, int count) const {
    const W* w = static_cast<const W*>(weight_.data) + static_cast<int64_t>(first) * columns_ +
                 column_tile * kAmxColumns;
    const int left = columns_ - column_tile * kAmxColumns;
    for (int n = 0; n < outputs; n += kAmxOutputs, w += kAmxOutputs * columns_) {
      char* const out = panel_tile(n / kAmxOutputs, column_tile);
      if (outputs - n >= kAmxOutputs && left >= kAmxStep * kAmxColumns) {
        widen_block(w, columns_, out);
        continue;
      }
      for (int i = 0; i < kAmxOutputs; ++i) {  // zeros beyond the last output and column
        widen_edge(w + i * columns_, i < outputs - n ? left : 0, count, out + i * 64);
      }
    }
  }

  // kAmxStep whole tiles.
  template <typename W>
  [[gnu::noinline]] static void widen_block(const W* w, int64_t stride, char* out) {
    for (int i = 0; i < kAmxOutputs; ++i, w += stride, out += 64) {
      for (int k = 0; k < kAmxStep; ++k) {
        _mm512_store_si512(out + k * kAmxTileBytes, load32(w + k * kAmxColumns));
      }
    }
  }

  // One output's columns, `left` of which exist, into `count` tiles.
  template <typename W>
  static void widen_edge(const W* w, int left, int count, char* out) {
    for (int i = 0; i < count; ++i, left -= kAmxColumns) {
      W padded[kAmxColumns] = {};
      for (int j = 0; j < kAmxColumns && j < left; ++j) padded[j] = w[i * kAmxColumns + j];
      _mm512_store_si512(out + i * kAmxTileBytes, load32(padded));
    }
  }
  static __m512i load32(const Bf16* w) { return _mm512_loadu_si512(w); }
  static __m512i load32(const Fp8E4m3* w) {
    return fp8_to_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
  }

  // Product tile b: weight tiles of block b times the shared tiles. Four chains hide the latency.
  static void multiply_shared(const char* w, int64_t stride, const char* x, int columns,
                              int blocks) {
    for (int k = 0; k < columns; ++k, w += kAmxTileBytes, x += kAmxTileBytes) {
      _tile_loadd(6, x, 64);
      _tile_loadd(4, w, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (blocks == 1) continue;
      _tile_loadd(5, w + stride, 64);
      _tile_dpbf16ps(1, 5, 6);
      if (blocks == 2) continue;
      _tile_loadd(7, w + 2 * stride, 64);
      _tile_dpbf16ps(2, 7, 6);
      if (blocks == 3) continue;
      _tile_loadd(4, w + 3 * stride, 64);
      _tile_dpbf16ps(3, 4, 6);
    }
  }

  // Product tiles 2 b and 2 b + 1: weight tiles of block b times hi, times lo.
  static void multiply_split(const char* w, int64_t stride, const char* x, int columns,
                             int blocks) {
    for (int k = 0; k < columns; ++k, w += kAmxTileBytes, x += 2 * kAmxTileBytes) {
      _tile_loadd(4, w, 64);
      _tile_loadd(6, x, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, x + kAmxTileBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (blocks == 1) continue;
      _tile_loadd(5, w + stride, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  // v: output by output, lanes are rows. Outputs beyond `outputs` are not stored.
  static void store_rows(__m512 (&v)[16], int rows, float* y, int64_t y_stride, int outputs) {
    transpose16(v);
    const __mmask16 mask = outputs >= 16 ? 0xFFFF : (1u << outputs) - 1u;
    for (int r = 0; r < rows; ++r) _mm512_mask_storeu_ps(y + r * y_stride, mask, v[r]);
  }

  static void store_split(const float (&high)[16][16], const float (&low)[16][16], int rows,
                          float* y, int64_t y_stride, int outputs) {
    __m512 v[16];
    for (int n = 0; n < 16; ++n) {
      v[n] = _mm512_add_ps(_mm512_load_ps(high[n]), _mm512_load_ps(low[n]));
    }
    store_rows(v, rows, y, y_stride, outputs);
  }

  static void store_shared(const float (&both)[16][16], int rows, float* y, int64_t y_stride,
                           int outputs) {
    if (rows <= 2) {
      for (int n = 0; n < 16 && n < outputs; ++n) {
        for (int r = 0; r < rows; ++r) {
          y[r * y_stride + n] = both[n][r] + both[n][r + kAmxSharedRows];
        }
      }
      return;
    }
    __m512 v[16];
    for (int n = 0; n < 16; ++n) {
      const __m512 sums = _mm512_load_ps(both[n]);
      v[n] = _mm512_add_ps(sums, _mm512_shuffle_f32x4(sums, sums, 0x4E));
    }
    store_rows(v, rows, y, y_stride, outputs);
  }

  const LinearInput& x_;
  const LinearWeight& weight_;
  const LinearScratch scratch_;
  const int columns_, column_tiles_;
  int64_t y_stride_ = 0;
  int kept_columns_ = 0;  // column tiles of a panel that scratch.panel holds
  alignas(64) float product_[kAmxBlocks][kAmxOutputs][16];
};

}  // namespace
}  // namespace expertplex::cpu
