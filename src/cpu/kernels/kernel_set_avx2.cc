#include "cpu/kernels/kernel_set.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "cpu/kernels/kernel_set_impl.h"
#include "cpu/kernels/simd_avx2.h"

namespace expertplex::cpu {

const KernelSet* avx2_kernels() {
  static constexpr KernelSet kKernels = make_kernel_set<SimdAvx2>("avx2");
  return &kKernels;
}

}  // namespace expertplex::cpu

#else

const expertplex::cpu::KernelSet* expertplex::cpu::avx2_kernels() { return nullptr; }

#endif
