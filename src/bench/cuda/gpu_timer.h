// Device time of launches, by events around them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "cuda/host/cuda_result.h"

namespace expertplex::bench {

constexpr std::chrono::milliseconds kBurstIdle{30};

// Clock regimes; the card is power-capped, so they differ by more than most design choices.
enum class Regime {
  kBurst,       // 30 ms idle before every launch
  kBackToBack,  // no idle time between launches
};

// Microseconds of each of `count` runs of `launch` (which is told its index), after one warm-up.
inline Result<std::vector<double>> time_launches(int count, Regime regime,
                                                 const std::function<Result<void>(int)>& launch) {
  std::vector<cudaEvent_t> events(static_cast<size_t>(count) * 2);
  for (cudaEvent_t& event : events) EXPERTPLEX_CUDA_TRY(cudaEventCreate(&event));
  EXPERTPLEX_TRY(launch(0));
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  for (int i = 0; i < count; ++i) {
    if (regime == Regime::kBurst) {
      EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
      // The idle time is the regime itself; nothing is waited for.
      std::this_thread::sleep_until(std::chrono::steady_clock::now() + kBurstIdle);
    }
    EXPERTPLEX_CUDA_TRY(cudaEventRecord(events[2 * i]));
    EXPERTPLEX_TRY(launch(i));
    EXPERTPLEX_CUDA_TRY(cudaEventRecord(events[2 * i + 1]));
  }
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  std::vector<double> microseconds;
  for (int i = 0; i < count; ++i) {
    float milliseconds = 0;
    EXPERTPLEX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, events[2 * i], events[2 * i + 1]));
    microseconds.push_back(milliseconds * 1e3);
  }
  for (cudaEvent_t event : events) EXPERTPLEX_CUDA_TRY(cudaEventDestroy(event));
  return microseconds;
}

}  // namespace expertplex::bench
