#include "cpu/kernels/kernel_set_impl.h"
#include "cpu/kernels/simd_portable.h"

namespace expertplex::cpu {

const KernelSet* portable_kernels() {
  static constexpr KernelSet kKernels = make_kernel_set<SimdPortable>("portable");
  return &kKernels;
}

}  // namespace expertplex::cpu
