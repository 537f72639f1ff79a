#include "cpu/kernels/kernel_set.h"

#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "cpu/kernels/aligned_buffer.h"
#include "cpu/kernels/quantize.h"
#include "cpu/kernels/vector_ops.h"

namespace expertplex::cpu {
namespace {

bool machine_has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool machine_has_avx512() {
#if defined(__x86_64__)
  return machine_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

const KernelSet& choose_kernels() {
  const KernelSets runnable = runnable_kernel_sets();
  const KernelSet& widest = *runnable.sets[runnable.count - 1];
  const char* wanted = std::getenv("EXPERTPLEX_CPU_KERNELS");
  if (!wanted || !*wanted) return widest;
  for (int i = 0; i < runnable.count; ++i) {
    if (std::string_view(runnable.sets[i]->name) == wanted) return *runnable.sets[i];
  }
  log_warn("EXPERTPLEX_CPU_KERNELS={}: this machine has no such kernel set; using {}", wanted,
           widest.name);
  return widest;
}

}  // namespace

KernelSets runnable_kernel_sets() {
  KernelSets result{};
  result.sets[result.count++] = portable_kernels();
  if (avx2_kernels() && machine_has_avx2()) result.sets[result.count++] = avx2_kernels();
  if (avx512_kernels() && machine_has_avx512()) {
    result.sets[result.count++] = avx512_kernels();
    if (amx_kernels()) result.sets[result.count++] = amx_kernels();
  }
  return result;
}

const KernelSet& active_kernels() {
  static const KernelSet& kernels = choose_kernels();
  return kernels;
}

LinearScratch linear_scratch() {
  thread_local AlignedBuffer<float> panel(1, kLinearPanelFloats);
  thread_local AlignedBuffer<float> rows(1, kLinearRowFloats);
  thread_local AlignedBuffer<float> tiles(1, kLinearRowFloats);
  return {panel.data(), rows.data(), tiles.data()};
}

const char* kernel_set_name() { return active_kernels().name; }

void linear(const LinearInput& x, int rows, const LinearWeight& weight, int first_output,
            int output_count, float* y, int64_t y_stride) {
  EXPERTPLEX_CHECK(
      first_output >= 0 && output_count >= 0 && first_output + output_count <= weight.out_features,
      "outputs [{}, {}) of {}", first_output, first_output + output_count, weight.out_features);
  if (rows <= 0 || output_count == 0) return;
  active_kernels().linear(x, rows, weight, first_output, output_count, y, y_stride,
                          linear_scratch());
}

void quantize_row(const float* x, int columns, Fp8E4m3* values, float* scales) {
  EXPERTPLEX_CHECK(columns % 128 == 0, "{} columns", columns);
  active_kernels().quantize_row(x, columns, values, scales);
}
void widen_row(const Fp8E4m3* values, int columns, float* x) {
  active_kernels().widen_fp8(values, columns, x);
}
void bf16_to_float(const Bf16* source, int count, float* destination) {
  active_kernels().widen_bf16(source, count, destination);
}
void fp16_to_float(const Fp16* source, int count, float* destination) {
  active_kernels().widen_fp16(source, count, destination);
}
void float_to_bf16(const float* source, int count, Bf16* destination) {
  active_kernels().float_to_bf16(source, count, destination);
}

void rms_norm(const float* x, const float* weight, int count, float eps, float* y) {
  active_kernels().rms_norm(x, weight, count, eps, y);
}
void rotate_half_split(float* head, const float* cosines, const float* sines, int half) {
  active_kernels().rotate_half_split(head, cosines, sines, half);
}
void silu_multiply(const float* gate, const float* up, int count, float* y) {
  active_kernels().silu_multiply(gate, up, count, y);
}
void sigmoid(const float* x, int count, float* y) { active_kernels().sigmoid(x, count, y); }
void add_scaled(float factor, const float* x, int count, float* y) {
  active_kernels().add_scaled(factor, x, count, y);
}
void multiply_by(float factor, int count, float* y) {
  active_kernels().multiply_by(factor, count, y);
}
int argmax(const float* x, int count) { return active_kernels().argmax(x, count); }
float softmax_numerators(const float* x, int count, float scale, float* y) {
  return active_kernels().softmax(x, count, scale, y);
}

void attend_chunk(const AttentionChunk& chunk, const AttentionRows& rows) {
  active_kernels().attend_chunk(chunk, rows);
}

}  // namespace expertplex::cpu
