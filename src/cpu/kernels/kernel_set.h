// KernelSet: one table of the CPU's inner loops per instruction set. The public headers of this
// folder (linear.h, quantize.h, vector_ops.h, attention_kernel.h) call through active_kernels(),
// which is chosen once: the widest set that the machine has, or the one EXPERTPLEX_CPU_KERNELS
// names.
//
// How the files fit together: simd_<set>.h wraps the instructions, *_impl.h are the loops as
// templates over such a wrapper, kernel_set_<set>.cc instantiates them. Code in *_impl.h must
// depend on the wrapper type (no plain inline functions, no standard library): a function that two
// sets share would be compiled for both and the linker would keep either.
//
// Thread rules: immutable.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "cpu/kernels/attention_kernel.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/linear_scratch.h"

namespace expertplex::cpu {

struct KernelSet {
  const char* name;

  // linear.h
  void (*linear)(const LinearInput& x, int rows, const LinearWeight& weight, int first_output,
                 int output_count, float* y, int64_t y_stride, const LinearScratch& scratch);

  // quantize.h
  void (*quantize_row)(const float* x, int columns, Fp8E4m3* values, float* scales);
  void (*widen_fp8)(const Fp8E4m3* source, int count, float* destination);
  void (*widen_bf16)(const Bf16* source, int count, float* destination);
  void (*widen_fp16)(const Fp16* source, int count, float* destination);
  void (*float_to_bf16)(const float* source, int count, Bf16* destination);

  // vector_ops.h
  void (*rms_norm)(const float* x, const float* weight, int count, float eps, float* y);
  void (*rotate_half_split)(float* head, const float* cosines, const float* sines, int half);
  void (*silu_multiply)(const float* gate, const float* up, int count, float* y);
  void (*sigmoid)(const float* x, int count, float* y);
  void (*add_scaled)(float factor, const float* x, int count, float* y);
  void (*multiply_by)(float factor, int count, float* y);
  int (*argmax)(const float* x, int count);
  float (*softmax)(const float* x, int count, float scale, float* y);

  // attention_kernel.h
  void (*attend_chunk)(const AttentionChunk& chunk, const AttentionRows& rows);
};

// Null where the compiler could not build the set for this architecture.
const KernelSet* portable_kernels();
const KernelSet* avx2_kernels();
const KernelSet* avx512_kernels();
// Null also where the machine, or the kernel under us, has no AMX.
const KernelSet* amx_kernels();

const KernelSet& active_kernels();

// The sets that this machine can run, narrowest first (for tests and benches).
struct KernelSets {
  const KernelSet* sets[4];
  int count;
};
KernelSets runnable_kernel_sets();

}  // namespace expertplex::cpu
