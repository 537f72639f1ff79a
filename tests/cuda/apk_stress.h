// Senders of random operations that run on the GPU beside the persistent kernel: one CTA a slot
// makes an operation ready, waits for it, compares every row, poisons the output and goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device/apk_state.h"

namespace expertplex::cuda {

// One operation slot and its problem: `capacity` masked rows an expert, of `columns` outputs.
struct StressSlot {
  ApkSlot* mailbox = nullptr;
  const ApkWord* done = nullptr;
  uint16_t* output = nullptr;
  const uint16_t* expected = nullptr;  // of all rows
  uint32_t experts = 0, capacity = 0, columns = 0;
  uint32_t most_rows = 0;
};

enum class StressFault : uint32_t { kNone, kNotDone, kWrongBits };

struct StressResult {
  uint32_t operations = 0;  // done and compared
  StressFault fault = StressFault::kNone;
  uint32_t epoch = 0, expert = 0, row = 0, rows = 0, column = 0, got = 0, expected = 0;
};

constexpr uint32_t kMostStressSlots = 8;
constexpr uint32_t kMostStressExperts = 16;
struct StressSlots {
  StressSlot slot[kMostStressSlots];
};

// `count` slots, `operations` of each, on so many SMs that the persistent kernel leaves free.
// Outputs hold `poison` (16 bits) at the start and wherever no row exists. Results are device
// memory.
cudaError_t launch_stress(const StressSlots& slots, uint32_t count, uint32_t operations,
                          uint16_t poison, uint32_t seed, uint64_t limit_ns, StressResult* results,
                          cudaStream_t stream);
// Loads the kernel, before the persistent one runs.
cudaError_t prepare_stress();

}  // namespace expertplex::cuda
