// Warp- and CTA-level instructions.
#pragma once

#include <cstdint>

namespace expertplex::ptx {

// One lane of a converged warp, chosen so that ptxas knows it is one: `lane == 0` around a TMA
// instruction costs a vote loop per instruction (notes/co-residency.md 5.2).
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Gives registers of the warpgroup back to, or takes them from, the CTA's pool. Every warp of the
// warpgroup executes it. ptxas honours it only in a kernel with __launch_bounds__(threads, 1).
template <uint32_t kCount>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <uint32_t kCount>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Barrier `id` (1..15; 0 is __syncthreads) among `threads` threads.
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Nanoseconds since the device's epoch, the same on all SMs; ticks by 32 ns to 1 us, by machine.
__device__ __forceinline__ uint64_t global_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// A compiler fence on values in registers: they are neither moved nor copied across it.
template <uint32_t kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// The same value, but ptxas keeps it in a register instead of computing it again at each use (from
// special registers: some 30 cycles in front of what needs it). All lanes of the warp. A shuffle is
// the one move that is never done twice.
__device__ __forceinline__ uint32_t keep_in_register(uint32_t value) {
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return __shfl_sync(0xffffffff, value, static_cast<int>(lane));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace expertplex::ptx
