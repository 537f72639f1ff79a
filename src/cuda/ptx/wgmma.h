// FP8 e4m3 warpgroup matrix products: D[64, N] (+)= A[64, 32] * B[N, 32]^T, A and B in shared
// memory, K-major, 128-byte swizzle; D in float registers.
//
// D's layout: warp w of the warpgroup holds rows 16w..16w+15; lane l holds, for column group j
// (8 columns), d[4j], d[4j+1] at row 16w + l/4, columns 8j + 2(l%4) and +1, and d[4j+2], d[4j+3] at
// row + 8.
#pragma once

#include <cstdint>

namespace expertplex::ptx {

// Shared-memory operand: rows of 128 bytes, groups of 8 rows 1024 bytes apart, 128-byte swizzle.
// The low word holds the address / 16 (1024-byte aligned), so that other stages and the next
// k-steps of 32 elements are additions to it; the high word is a constant.
__device__ constexpr uint32_t wgmma_operand_low(uint32_t address) {
  constexpr uint32_t kLeadingOffset = 1u << 16;  // unused by this layout
  return (address & 0x3FFFF) >> 4 | kLeadingOffset;
}
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t low) {
  constexpr uint32_t kStrideOffset = 1024 >> 4;  // between groups of 8 rows
  constexpr uint32_t kSwizzle128 = 1u << 30;
  return uint64_t{kStrideOffset | kSwizzle128} << 32 | low;
}

// Before the first product of a batch, and after accumulators were touched by anything else.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are under way.
template <uint32_t kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Wgmma<N>::multiply(d, a, b, accumulate): d = a * b + (accumulate ? d : 0), asynchronously.
template <uint32_t kColumns>
struct Wgmma;

template <>
struct Wgmma<16> {
  static __device__ __forceinline__ void multiply(float (&d)[8], uint64_t a, uint64_t b,
                                                  uint32_t accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

template <>
struct Wgmma<128> {
  static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b,
                                                  uint32_t accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39,"
        " %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55,"
        " %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63])
        : "l"(a), "l"(b), "r"(accumulate));
  }
};

}  // namespace expertplex::ptx
