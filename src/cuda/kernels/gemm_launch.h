// Launches of the compiled GEMM kernels. No Result here: device translation units stay free of what
// nvcc cannot compile (fmt).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "cuda/device/gemm_config.h"
#include "cuda/device/static_operation.h"

namespace expertplex::cuda {

// The configurations that are compiled for ordinary launches.
std::span<const GemmConfig> compiled_gemm_configs();

// Asynchronous on `stream`. cudaErrorInvalidValue: the configuration is not compiled.
cudaError_t launch_gemm_kernel(const GemmConfig& config, const StaticSourceParameters& parameters,
                               uint32_t ctas, cudaStream_t stream);

}  // namespace expertplex::cuda
