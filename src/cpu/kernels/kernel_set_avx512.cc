#include "cpu/kernels/kernel_set.h"

// GCC 12 warns about the deliberately undefined pass-through operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "cpu/kernels/kernel_set_impl.h"
#include "cpu/kernels/simd_avx512.h"

namespace expertplex::cpu {

const KernelSet* avx512_kernels() {
  static constexpr KernelSet kKernels = make_kernel_set<SimdAvx512>("avx512");
  return &kKernels;
}

}  // namespace expertplex::cpu

#else

const expertplex::cpu::KernelSet* expertplex::cpu::avx512_kernels() { return nullptr; }

#endif
