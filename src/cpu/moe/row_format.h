// How activations travel between attention and MoE servers of the CPU backend.
//
//   kNative: dispatch [hidden] float, combine [hidden] float.
//   kFp8:    dispatch [hidden] e4m3, then [hidden / 128] float scales; combine [hidden] BF16.
//            hidden must be a multiple of 128.
//
// Rows start at multiples of 4 bytes.
//
// Thread rules: pure functions over caller memory.
#pragma once

#include <cstddef>
#include <cstring>

#include "backend/backend.h"
#include "base/number_formats.h"
#include "cpu/kernels/quantize.h"

namespace expertplex::cpu {

constexpr int kActivationScaleTile = 128;  // columns per activation scale

constexpr size_t dispatch_row_bytes(int hidden, MoeActivation activation) {
  const size_t columns = static_cast<size_t>(hidden);
  if (activation == MoeActivation::kNative) return columns * sizeof(float);
  return columns + columns / kActivationScaleTile * sizeof(float);
}

constexpr size_t combine_row_bytes(int hidden, MoeActivation activation) {
  const size_t columns = static_cast<size_t>(hidden);
  return columns * (activation == MoeActivation::kNative ? sizeof(float) : sizeof(Bf16));
}

// x [hidden] -> one dispatch row.
inline void encode_dispatch_row(const float* x, int hidden, MoeActivation activation,
                                std::byte* row) {
  if (activation == MoeActivation::kNative) {
    std::memcpy(row, x, static_cast<size_t>(hidden) * sizeof(float));
    return;
  }
  quantize_row(x, hidden, reinterpret_cast<Fp8E4m3*>(row), reinterpret_cast<float*>(row + hidden));
}

// Columns [first, first + count) of a result -> their place in a combine row.
inline void encode_combine_columns(const float* y, int first, int count, MoeActivation activation,
                                   std::byte* row) {
  if (activation == MoeActivation::kNative) {
    std::memcpy(row + static_cast<size_t>(first) * sizeof(float), y,
                static_cast<size_t>(count) * sizeof(float));
    return;
  }
  float_to_bf16(y, count, reinterpret_cast<Bf16*>(row) + first);
}

// One combine row as [hidden] floats: in place where it is float already, else in `scratch`
// [hidden].
inline const float* decode_combine_row(const std::byte* row, int hidden, MoeActivation activation,
                                       float* scratch) {
  if (activation == MoeActivation::kNative) return reinterpret_cast<const float*>(row);
  bf16_to_float(reinterpret_cast<const Bf16*>(row), hidden, scratch);
  return scratch;
}

}  // namespace expertplex::cpu
