// The ways to share a GPU between two streams of launched kernels, as contestants beside the
// persistent kernel: our own GEMM kernels under each policy.
//
//   exclusive          a phase has the GPU for itself
//   priority           two streams, decode's of the highest priority; prefill as one CTA an SM for
//                      all its tiles, which decode has to wait for
//   priority by tile  the same, but prefill as one CTA a tile: decode gets in between tiles
//   green N            decode in a green context of N SMs, prefill in one of the others
//
// Times are those of events around each launch, so they include a launch (about 3 us). Thread
// rules: one thread; nothing else runs on the GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cuda/apk_workload.h"

namespace expertplex::bench {

struct SharedTimes {
  std::vector<double> decode_us;   // of each decode operation
  std::vector<double> prefill_us;  // with decode beside it
};

// Both phases always busy, for as long as `prefills` prefill operations take.
struct SharedRates {
  double prefill_us = 0, decode_us = 0;  // time per operation
};

class LaunchedSharing {
 public:
  enum class Policy { kExclusive, kPriority, kPriorityByTile, kGreen };

  // decode_sms: of kGreen; the driver rounds it up to its granularity.
  static Result<std::unique_ptr<LaunchedSharing>> make(const GemmName& shape, uint32_t decode_rows,
                                                       Policy policy, uint32_t decode_sms = 0);
  ~LaunchedSharing();

  // Decode operations at first_us, first_us + every_us, ... after each prefill is launched (one
  // only, where every_us is 0). kExclusive: the prefills have nothing beside them, and then the
  // decodes.
  Result<SharedTimes> run(int prefills, double first_us, double every_us);
  Result<SharedRates> saturate(int prefills);
  // Compares what was written with an exact reference.
  Result<void> check() const;

  const std::string& name() const { return name_; }

 private:
  struct Impl;
  explicit LaunchedSharing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::string name_;
};

}  // namespace expertplex::bench
