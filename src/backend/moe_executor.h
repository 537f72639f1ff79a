// MoeExecutor: one MoE server: it owns its window and the experts it holds, and runs the operations
// that attention servers make ready in the window's words, both phases through src/apk, until it is
// stopped. Nothing else reaches it: no calls per operation.
//
// Thread rules: start/stop from one thread; abort and statistics from any.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace expertplex {

struct MoeStatistics {
  uint64_t prefill_operations = 0, decode_operations = 0;
  uint64_t prefill_tiles = 0, decode_tiles = 0;
  uint64_t preemptions = 0;      // a cluster left unfinished prefill work for a decode operation
  uint64_t open_operations = 0;  // ready or running now
  uint64_t waits_timed_out = 0;
  double x_moe_decode_mean = 0;  // executed decode tiles rows-wise, see apk/footprint.h
};

class MoeExecutor {
 public:
  virtual ~MoeExecutor() = default;

  virtual Result<void> start() = 0;
  // Finishes the operations that are ready, then ends. At most `limit`, then aborts and says what
  // was left.
  virtual Result<void> stop(Nanoseconds limit) = 0;
  virtual void abort() = 0;
  virtual MoeStatistics statistics() const = 0;
};

}  // namespace expertplex
