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

// Sizes and names of what only device code can spell.
extern const size_t kApkParkedVectors;  // of float4, per CTA (cuda/device/main_math.h)
// The mbarrier at this many bytes from the start of a CTA's shared memory: "main_full[1]".
const char* apk_barrier_name(uint32_t offset);

// Starts one CTA per cluster (parameters.limits.clusters) on `stream`; returns at once.
// REQUIRES: as many free SMs; the kernel runs until its stop word says so.
cudaError_t launch_apk(const ApkParameters& parameters, cudaStream_t stream);

// One operation that a sender on the device makes ready and waits for: request and rows first, then
// the ready word; then the done word, which lies in device memory. Device-visible memory.
struct ApkSend {
  ApkSlot* slot = nullptr;
  const ApkWord* done = nullptr;
  uint32_t epoch = 0;
  uint32_t layer = 0;
  uint32_t experts = 0;
  ApkRequest request;
  // When it is sent: so long after the kernel's start, and not before the sender's previous one is
  // done.
  uint64_t not_before_ns = 0;
  uint64_t sent_ns = 0;  // written: global time at the ready word's store
  uint64_t done_ns = 0;  // written: global time when the done word was seen; 0: it never was
  uint32_t rows[kApkMaxExperts] = {};
};

// A sender: `count` operations one after the other.
struct ApkSender {
  ApkSend* sends = nullptr;
  uint32_t count = 0;
};
constexpr uint32_t kMaxApkSenders = 4;
struct ApkSenders {
  ApkSender sender[kMaxApkSenders];
};

// Runs the senders, one thread each, on an SM that the persistent kernel leaves free. A sender that
// waits longer than `limit_ns` for a done word gives up.
cudaError_t launch_apk_senders(const ApkSenders& senders, uint64_t limit_ns, cudaStream_t stream);

}  // namespace expertplex::cuda
