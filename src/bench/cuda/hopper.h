// The GPU that benches run on.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"

namespace expertplex::bench {

// Device 0, if it is of the architecture that the kernels are built for (sm_90a).
inline Result<cudaDeviceProp> find_hopper() {
  cudaDeviceProp device;
  const cudaError_t error = cudaGetDeviceProperties(&device, 0);
  if (error != cudaSuccess) {
    return make_error(ErrorCode::kUnsupported,
                      "this bench needs a Hopper GPU (sm_90): found none ({})",
                      cudaGetErrorString(error));
  }
  if (device.major != 9 || device.minor != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "this bench needs a Hopper GPU (sm_90): found {} (sm_{}{})", device.name,
                      device.major, device.minor);
  }
  return device;
}

}  // namespace expertplex::bench
