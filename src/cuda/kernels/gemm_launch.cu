#include "cuda/device/static_source.h"
#include "cuda/kernels/gemm_kernel.h"
#include "cuda/kernels/gemm_launch.h"

namespace expertplex::cuda {
namespace {

struct Resident {
  static constexpr GemmConfig kValue{};
};
// Without the resident pipeline its memory and registers go to the main one: what holding them
// costs is a difference between two rows of the bench.
struct MainOnly {
  static constexpr GemmConfig kValue{.main_stages = 4,
                                     .resident_stages = 0,
                                     .producer_registers = 56,
                                     .math_registers = 224,
                                     .resident_registers = 0};
};

constexpr GemmConfig kConfigs[] = {Resident::kValue, MainOnly::kValue};

template <typename Config>
cudaError_t launch(const StaticSourceParameters& parameters, uint32_t ctas, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Config, StaticSource>;
  constexpr size_t kShared = sizeof(SharedLayout<Config::kValue>);
  static const cudaError_t prepared = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  if (prepared != cudaSuccess) return prepared;
  kernel<<<ctas, Config::kValue.threads(), kShared, stream>>>(parameters);
  return cudaGetLastError();
}

}  // namespace

std::span<const GemmConfig> compiled_gemm_configs() { return kConfigs; }

cudaError_t launch_gemm_kernel(const GemmConfig& config, const StaticSourceParameters& parameters,
                               uint32_t ctas, cudaStream_t stream) {
  if (config == Resident::kValue) return launch<Resident>(parameters, ctas, stream);
  if (config == MainOnly::kValue) return launch<MainOnly>(parameters, ctas, stream);
  return cudaErrorInvalidValue;
}

}  // namespace expertplex::cuda
