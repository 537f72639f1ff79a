// The table of one instruction set, from the templates.
#pragma once

#include "cpu/kernels/attention_impl.h"
#include "cpu/kernels/kernel_set.h"
#include "cpu/kernels/linear_impl.h"
#include "cpu/kernels/vector_ops_impl.h"

namespace expertplex::cpu {

template <class S>
constexpr KernelSet make_kernel_set(const char* name) {
  using Ops = VectorOps<S>;
  return KernelSet{
      .name = name,
      .linear = LinearKernel<S>::linear,
      .quantize_row = Ops::quantize_row,
      .widen_fp8 = Ops::template widen<Fp8E4m3>,
      .widen_bf16 = Ops::template widen<Bf16>,
      .widen_fp16 = Ops::template widen<Fp16>,
      .float_to_bf16 = Ops::float_to_bf16,
      .rms_norm = Ops::rms_norm,
      .rotate_half_split = Ops::rotate_half_split,
      .silu_multiply = Ops::silu_multiply,
      .sigmoid = Ops::sigmoid,
      .add_scaled = Ops::add_scaled,
      .multiply_by = Ops::multiply_by,
      .argmax = Ops::argmax,
      .softmax = Ops::softmax,
      .attend_chunk = AttentionKernel<S>::attend_chunk,
  };
}

}  // namespace expertplex::cpu
