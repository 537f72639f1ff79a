// Global memory.
#pragma once

#include <cstdint>

namespace expertplex::ptx {

// Stores 16 bytes if `condition`; predicated, not branched around.
__device__ __forceinline__ void store_global_if(bool condition, void* to, float x, float y, float z,
                                                float w) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(to),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(static_cast<uint32_t>(condition))
      : "memory");
}

// Two words that others write, side by side; each by itself as a relaxed load of system scope.
struct WordPair {
  uint64_t first = 0, second = 0;
};
__device__ __forceinline__ WordPair load_word_pair(const uint64_t* from) {
  WordPair pair;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.first), "=l"(pair.second)
               : "l"(from)
               : "memory");
  return pair;
}

// 16 bytes that never change while the kernel runs; not moved by the compiler.
__device__ __forceinline__ uint4 load_global_constant(const uint4* from) {
  uint4 words;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

}  // namespace expertplex::ptx
