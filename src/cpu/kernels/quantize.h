// FP8 activations as the GPU quantises them: per row and 128 columns, scale = amax / 448 (1 where
// amax is 0), value = e4m3(x / scale). NaN becomes NaN in values, and widens to +-480: it never
// occurs in a healthy model.
//
// Thread rules: pure functions over caller memory.
#pragma once

#include <cstdint>

#include "base/number_formats.h"

namespace expertplex::cpu {

// x [columns] -> values [columns], scales [columns / 128]; columns a multiple of 128.
void quantize_row(const float* x, int columns, Fp8E4m3* values, float* scales);

// e4m3 values as floats, unscaled (the scales go into LinearInput::scales).
void widen_row(const Fp8E4m3* values, int columns, float* x);

// Number formats in bulk. float_to_bf16 rounds to nearest, ties to even.
void bf16_to_float(const Bf16* source, int count, float* destination);
void fp16_to_float(const Fp16* source, int count, float* destination);
void float_to_bf16(const float* source, int count, Bf16* destination);

}  // namespace expertplex::cpu
