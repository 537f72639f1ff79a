// CUDA errors as Result: what the driver refuses (no device, no memory) is the outside's doing.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"

namespace expertplex::cuda {

inline Result<void> cuda_result(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable;
  return make_error(code, "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace expertplex::cuda

// EXPERTPLEX_CUDA_TRY(call): returns a failed call's error from the enclosing function.
#define EXPERTPLEX_CUDA_TRY(...) \
  EXPERTPLEX_TRY(::expertplex::cuda::cuda_result((__VA_ARGS__), #__VA_ARGS__))
