#include "cuda/device/apk_source.h"
#include "cuda/kernels/apk_launch.h"
#include "cuda/kernels/gemm_kernel.h"

namespace expertplex::cuda {
namespace {

struct Apk {
  static constexpr GemmConfig kValue{};
};
constexpr auto kApkKernel = gemm_kernel<Apk, ApkSource>;
constexpr size_t kApkShared = sizeof(SharedLayout<Apk::kValue>);

__global__ void signal_kernel(ApkSignal* signals, uint32_t count) {
  const uint64_t start = ptx::global_time_ns();
  for (uint32_t i = 0; i < count; ++i) {
    ApkSignal& signal = signals[i];
    for (uint32_t e = 0; e < signal.experts; ++e) {
      signal.slot->rows_per_expert[e] = signal.rows[e];
    }
    signal.slot->request = signal.request;
    while (ptx::global_time_ns() - start < signal.delay_ns) {
    }
    signal.signalled_ns = ptx::global_time_ns();
    apk::DeviceMemory::store(&signal.slot->ready.value, apk::pack_epoch_value(signal.epoch, 1),
                             apk::Release{}, apk::SystemScope{});
  }
}

}  // namespace

cudaError_t prepare_apk_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncSetAttribute(kApkKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kApkShared));
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kApkKernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, signal_kernel);
  return error;
}

cudaError_t launch_apk(const ApkParameters& parameters, cudaStream_t stream) {
  kApkKernel<<<parameters.limits.clusters, Apk::kValue.threads(), kApkShared, stream>>>(parameters);
  return cudaGetLastError();
}

cudaError_t launch_apk_signals(ApkSignal* signals, uint32_t count, cudaStream_t stream) {
  signal_kernel<<<1, 1, 0, stream>>>(signals, count);
  return cudaGetLastError();
}

}  // namespace expertplex::cuda
