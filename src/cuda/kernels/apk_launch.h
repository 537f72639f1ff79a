// Launches of the adaptive persistent kernel and of the small kernel that signals ready words from
// a stream. No Result here (see gemm_launch.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device/apk_state.h"

namespace expertplex::cuda {

// Loads the kernels, so that nothing is loaded beside the persistent one: lazy loading takes a lock
// that waits for it.
cudaError_t prepare_apk_kernels();

// Starts one CTA per cluster (parameters.limits.clusters) on `stream`; returns at once.
// REQUIRES: as many free SMs; the kernel runs until its stop word says so.
cudaError_t launch_apk(const ApkParameters& parameters, cudaStream_t stream);

// One operation to signal: the slot's request becomes `request` and `rows`, then its ready word
// `epoch`. Lies in device or host-mapped memory.
struct ApkSignal {
  ApkSlot* slot = nullptr;
  uint32_t epoch = 0;
  uint32_t experts = 0;
  ApkRequest request;
  uint64_t delay_ns = 0;      // after the kernel's start
  uint64_t signalled_ns = 0;  // written: global time just before the ready word
  uint32_t rows[kApkMaxExperts] = {};
};

// Signals them in order, from one thread that runs beside the persistent kernel.
cudaError_t launch_apk_signals(ApkSignal* signals, uint32_t count, cudaStream_t stream);

}  // namespace expertplex::cuda
