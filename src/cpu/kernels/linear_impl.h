// linear() as a template over an instruction wrapper S (kernel_set.h says how the files fit
// together).
//
// One output element: lanes over K, all of K through one accumulator vector, then the lanes are
// added in S::sum's tree. With scales (FP8 weights or activations), x is multiplied beforehand by
// weight scale * activation scale of its 128 columns: one factor per row, 128 columns and 128
// outputs, so it costs next to nothing, where scaling partial sums would need twice the
// accumulators. Blocking only chooses which elements are computed side by side, so it never shows
// in the result.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/linear_scratch.h"

namespace expertplex::cpu {

// Rows and weights as the micro-kernel sees them; all outputs lie in one 128 x K stripe of scales.
// W is the stored element type, or float where weights were widened beforehand.
template <typename W>
struct LinearBlock {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* x_scales = nullptr;  // null: none
  int64_t x_scale_stride = 0;
  const W* w = nullptr;
  int64_t w_stride = 0;
  const float* w_scales = nullptr;  // along K; null: none
  float w_factor = 1.0f;            // undoes the power of two of S::load(const Fp8E4m3*)
  int columns = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  LinearScratch scratch;

  // What row r is multiplied by in columns [128 * tile, 128 * (tile + 1)).
  float scale(int r, int tile) const {
    const float w_scale = (w_scales ? w_scales[tile] : 1.0f) * w_factor;
    return x_scales ? w_scale * x_scales[r * x_scale_stride + tile] : w_scale;
  }
};

template <class S>
struct LinearKernel {
  using Vector = typename S::Vector;
  static constexpr int kTile = 128;  // columns and outputs per scale
  static constexpr int kOutputs = S::kOutputs;
  static_assert(kOutputs == 4 && kTile % S::kWidth == 0);

  // Columns [begin, end) into the sums. kScaled: rows are multiplied by scales[r] on the way.
  template <int kR, int kC, bool kScaled, typename W>
  static void accumulate(const LinearBlock<W>& b, int begin, int end, const Vector (&scales)[kR],
                         Vector (&sum)[kR][kC]) {
    int k = begin;
    for (; k + S::kWidth <= end; k += S::kWidth) {
      Vector w[kC];
      for (int c = 0; c < kC; ++c) w[c] = S::load(b.w + c * b.w_stride + k);
      for (int r = 0; r < kR; ++r) {
        Vector x = S::load(b.x + r * b.x_stride + k);
        if constexpr (kScaled) x = S::multiply(x, scales[r]);
        for (int c = 0; c < kC; ++c) sum[r][c] = S::fma(x, w[c], sum[r][c]);
      }
    }
    if (k == end) return;
    for (int r = 0; r < kR; ++r) {
      Vector x = S::load_first(b.x + r * b.x_stride + k, end - k);
      if constexpr (kScaled) x = S::multiply(x, scales[r]);
      for (int c = 0; c < kC; ++c) {
        sum[r][c] = S::fma(x, S::load_first(b.w + c * b.w_stride + k, end - k), sum[r][c]);
      }
    }
  }

  template <int kR, int kC, bool kScaled, typename W>
  static void micro_kernel(const LinearBlock<W>& b) {
    Vector sum[kR][kC];
    for (auto& row : sum) {
      for (auto& v : row) v = S::zero();
    }
    Vector scales[kR] = {};
    if constexpr (!kScaled) {
      accumulate<kR, kC, false>(b, 0, b.columns, scales, sum);
    } else {
      for (int begin = 0, tile = 0; begin < b.columns; begin += kTile, ++tile) {
        for (int r = 0; r < kR; ++r) scales[r] = S::set1(b.scale(r, tile));
        const int end = begin + kTile < b.columns ? begin + kTile : b.columns;
        accumulate<kR, kC, true>(b, begin, end, scales, sum);
      }
    }
    store<kR, kC>(sum, b.y, b.y_stride);
  }

  template <int kR, int kC>
  static void store(const Vector (&total)[kR][kC], float* y, int64_t stride) {
    if constexpr (kR == 4 && kC == 4) {
      S::sum4x4(total, y, stride);
    } else if constexpr (kC == 4) {
      for (int r = 0; r < kR; ++r) S::sum4(total[r], y + r * stride);
    } else {
      for (int r = 0; r < kR; ++r) {
        for (int c = 0; c < kC; ++c) y[r * stride + c] = S::sum(total[r][c]);
      }
    }
  }

  // kR rows against the outputs whose first weight row is b.w.
  template <int kR, bool kScaled, typename W>
  static void row_block(LinearBlock<W> b, int outputs) {
    int n = 0;
    for (; n + kOutputs <= outputs; n += kOutputs) {
      micro_kernel<kR, kOutputs, kScaled>(b);
      b.w += kOutputs * b.w_stride;
      b.y += kOutputs;
    }
    for (; n < outputs; ++n) {
      micro_kernel<kR, 1, kScaled>(b);
      b.w += b.w_stride;
      b.y += 1;
    }
  }

  template <typename W>
  static void skip_rows(LinearBlock<W>& b, int rows) {
    b.x += rows * b.x_stride;
    if (b.x_scales) b.x_scales += rows * b.x_scale_stride;
    b.y += rows * b.y_stride;
  }

  template <bool kScaled, typename W>
  static void all_rows(LinearBlock<W> b, int rows, int outputs) {
    for (; rows >= S::kRows; rows -= S::kRows, skip_rows(b, S::kRows)) {
      row_block<S::kRows, kScaled>(b, outputs);
    }
    if constexpr (S::kRows > 3) {
      if (rows == 3) return row_block<3, kScaled>(b, outputs);
    }
    if constexpr (S::kRows > 2) {
      if (rows == 2) return row_block<2, kScaled>(b, outputs);
    }
    if (rows == 1) row_block<1, kScaled>(b, outputs);
  }

  // For many rows, weights are taken in panels that stay in the innermost cache and are widened
  // once per panel. This many floats, at least kOutputs weight rows:
  static constexpr int kPanelFloats = 8192;
  // From that many rows on a panel pays: widening 2-byte weights costs little more than loading
  // them.
  template <typename W>
  static constexpr int kPanelMinRows = sizeof(W) == 2 ? 32 : 2 * S::kRows;

  template <bool kScaled, typename W>
  static void run(const LinearInput& x, int rows, const LinearWeight& weight, int first, int count,
                  float* y, int64_t y_stride, const LinearScratch& scratch) {
    LinearBlock<W> b;
    b.scratch = scratch;
    b.x = x.data;
    b.x_stride = x.row_stride;
    b.x_scales = x.scales;
    b.x_scale_stride = x.scale_stride;
    b.w_stride = b.columns = weight.in_features;
    b.w = static_cast<const W*>(weight.data) + static_cast<int64_t>(first) * b.w_stride;
    b.w_factor = sizeof(W) == 1 ? 256.0f : 1.0f;
    b.y = y;
    b.y_stride = y_stride;
    const bool panels = rows >= kPanelMinRows<W> && kOutputs * b.columns <= kLinearPanelFloats;
    const int tiles = (b.columns + kTile - 1) / kTile;
    // Up to the next stripe of scales at a time; all at once where there are none.
    for (int n = first, end = first + count; n < end;) {
      const int outputs = kScaled && kTile - n % kTile < end - n ? kTile - n % kTile : end - n;
      if (weight.scales) b.w_scales = weight.scales + static_cast<int64_t>(n / kTile) * tiles;
      if (panels) {
        run_in_panels<kScaled>(b, rows, outputs);
      } else {
        all_rows<kScaled>(b, rows, outputs);
      }
      b.w += outputs * b.w_stride;
      b.y += outputs;
      n += outputs;
    }
  }

  // Rows in chunks that stay in the second cache.
  template <bool kScaled, typename W>
  static void run_in_panels(LinearBlock<W> b, int rows, int outputs) {
    const int step = kLinearRowFloats / b.columns;
    for (; rows > 0; rows -= step, skip_rows(b, step)) {
      const int chunk = rows < step ? rows : step;
      LinearBlock<W> c = b;
      if constexpr (kScaled) {
        for (int r = 0; r < chunk; ++r) scale_row(b, r, b.scratch.rows + r * b.columns);
        c.x = b.scratch.rows;
        c.x_stride = b.columns;
      }
      all_panels(c, chunk, outputs);
    }
  }

  template <typename W>
  static void scale_row(const LinearBlock<W>& b, int r, float* scaled) {
    const float* const x = b.x + r * b.x_stride;
    for (int begin = 0, tile = 0; begin < b.columns; begin += kTile, ++tile) {
      const Vector scale = S::set1(b.scale(r, tile));
      const int end = begin + kTile < b.columns ? begin + kTile : b.columns;
      int k = begin;
      for (; k + S::kWidth <= end; k += S::kWidth) {
        S::store(scaled + k, S::multiply(S::load(x + k), scale));
      }
      if (k < end) {
        S::store_first(scaled + k, end - k, S::multiply(S::load_first(x + k, end - k), scale));
      }
    }
  }

  template <typename W>
  static void all_panels(const LinearBlock<W>& b, int rows, int outputs) {
    LinearBlock<float> p;
    p.x = b.x;
    p.x_stride = b.x_stride;
    p.w_stride = p.columns = b.columns;
    p.y_stride = b.y_stride;
    int step = kPanelFloats / b.columns / kOutputs * kOutputs;
    if (step < kOutputs) step = kOutputs;
    for (int n = 0; n < outputs; n += step) {
      const int panel_outputs = outputs - n < step ? outputs - n : step;
      const W* const w = b.w + n * b.w_stride;
      if constexpr (sizeof(W) == sizeof(float)) {
        p.w = w;
      } else {
        widen(w, static_cast<int64_t>(panel_outputs) * b.columns, b.scratch.panel);
        p.w = b.scratch.panel;
      }
      p.y = b.y + n;
      all_rows<false>(p, rows, panel_outputs);
    }
  }

  // As S::load does: FP8 comes out times 2^-8.
  template <typename W>
  static void widen(const W* source, int64_t count, float* destination) {
    int64_t i = 0;
    for (; i + S::kWidth <= count; i += S::kWidth) S::store(destination + i, S::load(source + i));
    if (i < count) {
      const int left = static_cast<int>(count - i);
      S::store_first(destination + i, left, S::load_first(source + i, left));
    }
  }

  static void linear(const LinearInput& x, int rows, const LinearWeight& weight, int first,
                     int count, float* y, int64_t y_stride, const LinearScratch& scratch) {
    const bool scaled = weight.scales || x.scales;
    switch (weight.type) {
      case DataType::kF32:
        return scaled ? run<true, float>(x, rows, weight, first, count, y, y_stride, scratch)
                      : run<false, float>(x, rows, weight, first, count, y, y_stride, scratch);
      case DataType::kBf16:
        return scaled ? run<true, Bf16>(x, rows, weight, first, count, y, y_stride, scratch)
                      : run<false, Bf16>(x, rows, weight, first, count, y, y_stride, scratch);
      case DataType::kF16:
        return scaled ? run<true, Fp16>(x, rows, weight, first, count, y, y_stride, scratch)
                      : run<false, Fp16>(x, rows, weight, first, count, y, y_stride, scratch);
      case DataType::kFp8E4m3:
        return run<true, Fp8E4m3>(x, rows, weight, first, count, y, y_stride, scratch);
    }
  }
};

}  // namespace expertplex::cpu
