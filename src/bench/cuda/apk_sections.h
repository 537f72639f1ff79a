// The sections of `bench apk`, each on kernels of its own; every one checks the outputs that it
// timed. What a section measures is said where it is written.
#pragma once

#include "bench/cuda/apk_workload.h"
#include "bench/cuda/bench_rows.h"

namespace expertplex::bench {

// A way in which the phases share the persistent kernel.
struct ApkMode {
  const char* name;  // in row names
  apk::SwitchMode mode;
  apk::PausePolicy pause;
  size_t decode_slot;  // of the section's workload
};

// How soon a decode operation is under way in the middle of a prefill, and how long tiles take.
Result<void> measure_delay(const GemmName& shape, BenchRows& rows);

// Decode beside prefill under every contestant: one operation, and one every 300 us.
Result<void> measure_sharing(const GemmName& shape, BenchRows& rows);

// Both phases always busy, under every contestant.
Result<void> measure_saturation(const GemmName& shape, BenchRows& rows);

// Decode time against tokens and against experts that have rows.
Result<void> measure_footprint(const GemmName& shape, BenchRows& rows);

// Both phases alone, gate_up and down of the model: decode isolated and with the next one always
// ready, prefill in bursts, beside cuBLASLt's rate.
Result<void> measure_alone(const GemmName& model, BenchRows& rows);

}  // namespace expertplex::bench
