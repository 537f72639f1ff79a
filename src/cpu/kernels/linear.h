// The CPU's matrix products: y = x W^T with W in place as the checkpoint stores it (F32, BF16, F16
// or FP8 with 128 x 128 scales), accumulated in float. One of the sets of kernel_set.h is chosen at
// start:
//   portable, avx2, avx512  products in float;
//   amx                     BF16 and FP8 weights on the tile unit, x as the sum of two BF16 parts
//   (16
//                           bits of it): x alone in BF16 would not be "native" accuracy. From 4
//                           rows on faster than avx512, four times at 32 and more, half as slow
//                           again at
//                           1. Plain BF16 dot products (VDPBF16PS) would have to split too, and
//                           then gain nothing over float.
//
// Batch invariance (DESIGN contract 1): an output element is the same, bit for bit, whatever the
// number of rows, the column range or the blocking: its K order is fixed per kernel set. That is
// why no BLAS stands here: sgemm and sgemv choose kernels, and with them the order of additions, by
// size.
//
// FP8 weights: NaN codes (0x7F, 0xFF) count as +-480, the value their bits would have; no
// checkpoint contains them.
//
// Thread rules: pure functions over caller memory.
#pragma once

#include <cstdint>

#include "model/tensor.h"

namespace expertplex::cpu {

struct LinearInput {
  const float* data = nullptr;  // [rows, row_stride]
  int64_t row_stride = 0;
  // FP8 activations: data holds the e4m3 values as floats, and the i-th 128 columns of row r count
  // scales[r * scale_stride + i] times. Null: no scales.
  const float* scales = nullptr;
  int64_t scale_stride = 0;
};

// y[r * y_stride + (n - first_output)] for rows r and outputs n in [first_output, first_output +
// output_count). in_features a multiple of 16 is fast; others work.
void linear(const LinearInput& x, int rows, const LinearWeight& weight, int first_output,
            int output_count, float* y, int64_t y_stride);

// Which kernel set runs: "amx", "avx512", "avx2", "portable". EXPERTPLEX_CPU_KERNELS=<name> chooses
// a narrower one (tests compare them).
const char* kernel_set_name();

}  // namespace expertplex::cpu
