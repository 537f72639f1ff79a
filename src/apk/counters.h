// The scheduler's statistics, added up over clusters: for metrics, benches and tests. Relaxed reads
// while it runs: each number is true at some moment, their sum need not be.
#pragma once

#include <cstdint>

#include "apk/memory.h"
#include "apk/scheduler.h"

namespace expertplex::apk {

struct SchedulerCounters {
  uint64_t tiles[kPhaseCount][kTileKindCount] = {};  // claimed, by phase_index and TileKind
  uint64_t borrowed = 0;     // of them: taken for the other phase while the own had none
  uint64_t switches = 0;     // a pipeline's tile of another phase than its tile before
  uint64_t preemptions = 0;  // tiles parked at a k-block check
  uint64_t submitted[kPhaseCount] = {};
  uint64_t queue_depth[kPhaseCount] = {};  // operations submitted and not retired
  uint64_t decisions = 0;                  // that changed a preempt word

  uint64_t phase_tiles(Phase phase) const {
    const uint64_t* t = tiles[phase_index(phase)];
    return t[0] + t[1] + t[2];
  }
};

template <typename Mem>
SchedulerCounters read_counters(const TileScheduler<Mem>& scheduler) {
  const auto get = [](const uint64_t& counter) {
    return Mem::load(&counter, Relaxed{}, DeviceScope{});
  };
  SchedulerCounters sum;
  for (uint32_t c = 0; c < scheduler.limits().clusters; ++c) {
    const ClusterCounters& counters = scheduler.cluster_state(c)->counters;
    for (uint32_t p = 0; p < kPhaseCount; ++p) {
      for (uint32_t k = 0; k < kTileKindCount; ++k) sum.tiles[p][k] += get(counters.tiles[p][k]);
    }
    sum.borrowed += get(counters.borrowed);
    sum.switches += get(counters.switches);
    sum.preemptions += get(counters.preemptions);
  }
  const SharedState& shared = *scheduler.shared_state();
  for (uint32_t p = 0; p < kPhaseCount; ++p) {
    const uint64_t retired = get(shared.retired[p]);
    sum.submitted[p] = get(shared.submitted[p]);
    sum.queue_depth[p] = sum.submitted[p] > retired ? sum.submitted[p] - retired : 0;
  }
  sum.decisions = get(shared.decisions);
  return sum;
}

}  // namespace expertplex::apk
