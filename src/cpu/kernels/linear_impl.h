// linear() as a template over an instruction wrapper S (kernel_set.h says how the files fit
// together).
//
// One output element: lanes over K. In unscaled products all of K goes through one accumulator
// vector; in scaled ones (FP8 weights or activations) each 128 columns make a partial vector, which
// is multiplied by weight scale * activation scale and added to the total. Then the lanes are added
// in S::sum's tree. Blocking only chooses which elements are computed side by side, so it never
// shows in the result.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "cpu/kernels/linear.h"

namespace expertplex::cpu {

// Rows and weights as the micro-kernel sees them. W is the stored element type, or float where a
// panel of weights was widened beforehand.
template <typename W>
struct LinearBlock {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* x_scales = nullptr;  // null: none
  int64_t x_scale_stride = 0;
  const W* w = nullptr;
  int64_t w_stride = 0;
  const float* w_scales[4] = {};  // per output, along K; null: none
  float w_factor = 1.0f;          // undoes the power of two of S::load(const Fp8E4m3*)
  int columns = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

template <class S>
struct LinearKernel {
  using Vector = typename S::Vector;
  static constexpr int kTile = 128;  // columns per scale
  static constexpr int kOutputs = S::kOutputs;
  static_assert(kOutputs == 4 && kTile % S::kWidth == 0);

  template <int kR, int kC, typename W>
  static void accumulate(const LinearBlock<W>& b, int begin, int end, Vector (&sum)[kR][kC]) {
    int k = begin;
    for (; k + S::kWidth <= end; k += S::kWidth) {
      Vector w[kC];
      for (int c = 0; c < kC; ++c) w[c] = S::load(b.w + c * b.w_stride + k);
      for (int r = 0; r < kR; ++r) {
        const Vector x = S::load(b.x + r * b.x_stride + k);
        for (int c = 0; c < kC; ++c) sum[r][c] = S::fma(x, w[c], sum[r][c]);
      }
    }
    if (k == end) return;
    for (int r = 0; r < kR; ++r) {
      const Vector x = S::load_first(b.x + r * b.x_stride + k, end - k);
      for (int c = 0; c < kC; ++c) {
        sum[r][c] = S::fma(x, S::load_first(b.w + c * b.w_stride + k, end - k), sum[r][c]);
      }
    }
  }

  template <int kR, int kC, bool kScaled, typename W>
  static void micro_kernel(const LinearBlock<W>& b) {
    Vector total[kR][kC];
    for (auto& row : total) {
      for (auto& v : row) v = S::zero();
    }
    if constexpr (!kScaled) {
      accumulate<kR, kC>(b, 0, b.columns, total);
    } else {
      for (int begin = 0, tile = 0; begin < b.columns; begin += kTile, ++tile) {
        Vector partial[kR][kC];
        for (auto& row : partial) {
          for (auto& v : row) v = S::zero();
        }
        const int end = begin + kTile < b.columns ? begin + kTile : b.columns;
        accumulate<kR, kC>(b, begin, end, partial);
        for (int c = 0; c < kC; ++c) {
          const float w_scale = (b.w_scales[c] ? b.w_scales[c][tile] : 1.0f) * b.w_factor;
          for (int r = 0; r < kR; ++r) {
            const float x_scale = b.x_scales ? b.x_scales[r * b.x_scale_stride + tile] : 1.0f;
            total[r][c] = S::fma(partial[r][c], S::set1(w_scale * x_scale), total[r][c]);
          }
        }
      }
    }
    store<kR, kC>(total, b.y, b.y_stride);
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

  // A block of rows against outputs [first, first + count), whose first weight row is b.w.
  template <int kR, bool kScaled, typename W>
  static void row_block(LinearBlock<W> b, const LinearWeight& weight, int first, int count) {
    const int tiles = (weight.in_features + kTile - 1) / kTile;
    int n = 0;
    for (; n + kOutputs <= count; n += kOutputs) {
      set_weight_scales(b, weight, first + n, kOutputs, tiles);
      micro_kernel<kR, kOutputs, kScaled>(b);
      b.w += kOutputs * b.w_stride;
      b.y += kOutputs;
    }
    for (; n < count; ++n) {
      set_weight_scales(b, weight, first + n, 1, tiles);
      micro_kernel<kR, 1, kScaled>(b);
      b.w += b.w_stride;
      b.y += 1;
    }
  }

  template <typename W>
  static void set_weight_scales(LinearBlock<W>& b, const LinearWeight& weight, int output,
                                int count, int tiles) {
    if (!weight.scales) return;
    for (int c = 0; c < count; ++c) {
      b.w_scales[c] = weight.scales + static_cast<int64_t>((output + c) / kTile) * tiles;
    }
  }

  template <bool kScaled, typename W>
  static void all_rows(const LinearInput& x, int rows, LinearBlock<W> b, const LinearWeight& weight,
                       int first, int count) {
    int r = 0;
    const auto move_to = [&](int row, float* y) {
      b.x = x.data + row * x.row_stride;
      if (x.scales) b.x_scales = x.scales + row * x.scale_stride;
      b.y = y + row * b.y_stride;
    };
    float* const y = b.y;
    for (; r + S::kRows <= rows; r += S::kRows) {
      move_to(r, y);
      row_block<S::kRows, kScaled>(b, weight, first, count);
    }
    move_to(r, y);
    if constexpr (S::kRows > 3) {
      if (rows - r == 3) return row_block<3, kScaled>(b, weight, first, count);
    }
    if constexpr (S::kRows > 2) {
      if (rows - r == 2) return row_block<2, kScaled>(b, weight, first, count);
    }
    if (rows - r == 1) row_block<1, kScaled>(b, weight, first, count);
  }

  // For many rows, weights are taken in panels that stay in the innermost cache, and are widened
  // once per panel. This many floats, at least kOutputs weight rows:
  static constexpr int kPanelFloats = 8192;
  // Rows too long for kOutputs of them to fit here are widened in the micro-kernel.
  static constexpr int kPanelCapacity = 65536;
  static constexpr int kPanelMinRows = 2 * S::kRows;

  template <bool kScaled, typename W>
  static void run(const LinearInput& x, int rows, const LinearWeight& weight, int first, int count,
                  float* y, int64_t y_stride) {
    LinearBlock<W> b;
    b.x_stride = x.row_stride;
    b.x_scale_stride = x.scale_stride;
    b.w_stride = b.columns = weight.in_features;
    b.w = static_cast<const W*>(weight.data) + static_cast<int64_t>(first) * b.w_stride;
    b.w_factor = sizeof(W) == 1 ? 256.0f : 1.0f;
    b.y_stride = y_stride;
    b.y = y;
    if (rows >= kPanelMinRows && b.columns * kOutputs <= kPanelCapacity) {
      return run_in_panels<kScaled>(x, rows, b, weight, first, count);
    }
    all_rows<kScaled>(x, rows, b, weight, first, count);
  }

  template <bool kScaled, typename W>
  static void run_in_panels(const LinearInput& x, int rows, const LinearBlock<W>& b,
                            const LinearWeight& weight, int first, int count) {
    LinearBlock<float> p;
    p.x_stride = b.x_stride;
    p.x_scale_stride = b.x_scale_stride;
    p.w_stride = p.columns = b.columns;
    p.w_factor = b.w_factor;
    p.y_stride = b.y_stride;
    int step = kPanelFloats / b.columns / kOutputs * kOutputs;
    if (step < kOutputs) step = kOutputs;
    for (int n = 0; n < count; n += step) {
      const int outputs = count - n < step ? count - n : step;
      if constexpr (sizeof(W) == sizeof(float)) {
        p.w = b.w + n * b.w_stride;
      } else {
        alignas(64) static thread_local float panel[kPanelCapacity];
        widen(b.w + n * b.w_stride, static_cast<int64_t>(outputs) * b.columns, panel);
        p.w = panel;
      }
      p.y = b.y + n;
      all_rows<kScaled>(x, rows, p, weight, first + n, outputs);
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
                     int count, float* y, int64_t y_stride) {
    const bool scaled = weight.scales || x.scales;
    switch (weight.type) {
      case DataType::kF32:
        return scaled ? run<true, float>(x, rows, weight, first, count, y, y_stride)
                      : run<false, float>(x, rows, weight, first, count, y, y_stride);
      case DataType::kBf16:
        return scaled ? run<true, Bf16>(x, rows, weight, first, count, y, y_stride)
                      : run<false, Bf16>(x, rows, weight, first, count, y, y_stride);
      case DataType::kF16:
        return scaled ? run<true, Fp16>(x, rows, weight, first, count, y, y_stride)
                      : run<false, Fp16>(x, rows, weight, first, count, y, y_stride);
      case DataType::kFp8E4m3:
        return run<true, Fp8E4m3>(x, rows, weight, first, count, y, y_stride);
    }
  }
};

}  // namespace expertplex::cpu
