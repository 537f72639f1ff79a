// How the two phases share the clusters: data that the plan names per load level and the deciding
// agent applies (scheduler.h). Nothing here can change a number, only when it is computed.
#pragma once

#include <cstdint>

#include "apk/budget.h"
#include "base/host_device.h"

namespace expertplex::apk {

// Which pipeline of a cluster. Every cluster has a main pipeline; on the GPU it has a resident
// decode pipeline beside it (DESIGN section 2, mechanism 1). A CPU worker has only the main one.
enum class PipelineRole : uint8_t { kMain = 0, kResident = 1 };

// How the main pipeline of a cluster gives way to decode operations of the main pipeline.
enum class SwitchMode : uint8_t {
  kTileSwitching = 0,  // at the next tile boundary (CPU; the paper's mechanism; a bench contestant)
  kTwoPipelines = 1,   // never: decode runs beside it in the resident pipeline, which overlaps.
                       // A decode operation for the main pipeline is switched to at a tile boundary
  kParking = 2,        // at the next k-block check: park the accumulators, run decode, resume
};

// What the prefill producer does before each k-block while a decode operation is in flight: load on
// freely, keep at most 2 or 1 unconsumed k-blocks in flight, or load nothing. A pause never selects
// a tile, so each producer may read it alone.
enum class PausePolicy : uint8_t { kNever = 0, kWindow2 = 1, kWindow1 = 2, kAll = 3 };

// How many k-blocks a prefill producer may have in flight, of a ring of `depth` stages.
EXPERTPLEX_HOST_DEVICE constexpr uint32_t loads_in_flight(PausePolicy pause, uint32_t depth) {
  switch (pause) {
    case PausePolicy::kNever:
      return depth;
    case PausePolicy::kWindow2:
      return depth < 2 ? depth : 2;
    case PausePolicy::kWindow1:
      return depth < 1 ? depth : 1;
    case PausePolicy::kAll:
      break;
  }
  return 0;
}

struct SharingPolicy {
  SwitchMode mode = SwitchMode::kTileSwitching;
  PausePolicy pause = PausePolicy::kNever;
  Budget budget;
  // Off: a cluster takes no other phase's tile before the operation that it is on has been claimed
  // to the end (a bench contestant: what a stream of kernels would do).
  bool preemption_enabled = true;
  // A cluster whose phase has only tiles that wait for others to commit may take a tile of the
  // other phase. Off: it stays idle, so that decode never waits for a prefill tile begun in the
  // gap.
  bool lend_while_waiting = true;
};

}  // namespace expertplex::apk
