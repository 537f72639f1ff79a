// TileScheduler: what a pipeline asks "next?". The GEMM loop never learns how phases share
// clusters.
//
//   cluster side (a pipeline's leader)        agent side (deciding_agent.h)
//   ----------------------------------        -----------------------------
//   Claim claim = scheduler.next(pipeline);   if (auto agent = scheduler.try_become_agent()) {
//   if (claim.status == ClaimStatus::kTile) {   agent.submit(phase, slot, request);
//     compute(claim.tile);                      agent.decide(policy);
//     if (scheduler.commit(claim.tile)) {     }
//       scheduler.retire(claim.tile);
//       publish the done word
//     }
//   }
//
// On the GPU a cluster has a leader CTA; its claimer asks and hands the one answer to all members
// and warp roles (handoff.h): nobody else reads a shared word to decide. On a CPU a worker thread
// is a cluster with one member.
//
// Nothing here blocks, allocates or loops without a bound: next() looks at no more than 8
// operations per phase, commit() does at most three atomic operations. Waiting between two looks,
// its limit and the abort are the caller's.
//
// Thread rules: the handle is a value, copy it freely. A PipelineState belongs to one thread.
// next/preempt/commit/retire and try_become_agent may be called by any number of threads at once.
#pragma once

#include <cstdint>

#include "apk/deciding_agent.h"
#include "apk/operation_slot.h"
#include "apk/preempt_word.h"
#include "apk/scheduler_storage.h"
#include "base/host_device.h"

namespace expertplex::apk {

enum class ClaimStatus : uint8_t {
  kNothing,  // no tile for this pipeline now: look again
  kTile,     // compute and commit `tile`
  kResume,   // go on with the parked `tile`
  kAbort,    // leave
};

struct Claim {
  ClaimStatus status = ClaimStatus::kNothing;
  TileDescriptor tile;
};

// What a pipeline remembers between tiles; kept by its leader, in registers on the GPU.
struct PipelineState {
  uint32_t cluster = 0;
  PipelineRole role = PipelineRole::kMain;
  bool parked = false;   // parked_tile waits to be resumed
  bool started = false;  // last_tile says where the last tile came from
  struct {
    Phase phase = Phase::kPrefill;
    uint8_t slot = 0;
    uint32_t epoch = 0;
    uint32_t left = 0;  // GateUp tiles behind it when it was claimed
  } last_tile;
  TileDescriptor parked_tile;
};

template <typename Mem>
class TileScheduler {
 public:
  // REQUIRES: initialise_storage(limits, base) has happened before.
  EXPERTPLEX_HOST_DEVICE TileScheduler(const SchedulerLimits& limits, void* base)
      : limits_(limits), layout_(limits), base_(base) {}

  // Takes the deciding-agent role if it is free. Check the result for true.
  EXPERTPLEX_HOST_DEVICE AgentRole<Mem> try_become_agent() {
    uint32_t* word = &layout_.shared(base_)->agent_word;
    const bool held =
        Mem::load(word, Relaxed{}, DeviceScope{}) == 0 &&
        Mem::compare_exchange(word, uint32_t{0}, uint32_t{1}, Acquire{}, DeviceScope{});
    return AgentRole<Mem>(limits_, base_, held);
  }

  // At a tile boundary: what this pipeline does next.
  EXPERTPLEX_HOST_DEVICE Claim next(PipelineState& pipeline) {
    return next(pipeline, read_decision(pipeline.cluster), LoadedWindows{layout_.shared(base_)});
  }

  // The same for a leader that has just read its decision and the ready windows. A window of 0
  // keeps it from tiles of that phase: there are none, or it has no room for one.
  struct SeenWindows {
    uint64_t prefill = 0, decode = 0;
    EXPERTPLEX_HOST_DEVICE constexpr bool open(Phase phase) const { return of(phase) != 0; }
    EXPERTPLEX_HOST_DEVICE constexpr uint64_t of(Phase phase) const {
      return phase == Phase::kPrefill ? prefill : decode;
    }
  };
  template <typename Windows>
  EXPERTPLEX_HOST_DEVICE Claim next(PipelineState& pipeline, const Decision& decision,
                                    const Windows& windows) {
    if (decision.abort) return {ClaimStatus::kAbort, {}};
    if (pipeline.role == PipelineRole::kResident) {
      return decision.resident ? take(pipeline, Phase::kDecode, false, windows) : Claim{};
    }
    if (pipeline.parked) return next_while_parked(pipeline, decision, windows);
    if (!decision.preempt && pipeline.started) {
      if (!windows.open(pipeline.last_tile.phase)) return {};
      const Claim more = take_from(pipeline, pipeline.last_tile.phase, pipeline.last_tile.slot);
      if (more.status == ClaimStatus::kTile) return more;
      const UnclaimedTiles unclaimed = find_unclaimed_tiles<Mem>(
          layout_.slot(base_, pipeline.last_tile.phase, pipeline.last_tile.slot));
      if (unclaimed.any && unclaimed.epoch == pipeline.last_tile.epoch) return {};
    }
    if (windows.open(decision.main_phase)) {
      const Claim own = take(pipeline, decision.main_phase, false, windows);
      if (own.status == ClaimStatus::kTile) return own;
    }
    const Phase other = other_phase(decision.main_phase);
    return decision.lend && windows.open(other) ? take(pipeline, other, true, windows) : Claim{};
  }

  // A tile that the cluster owns (announcement.h): its leader has made it from the counts of the
  // operation's senders and acquired their ready words.
  EXPERTPLEX_HOST_DEVICE Claim note_announced(PipelineState& pipeline, const TileDescriptor& tile) {
    return taken(pipeline, {ClaimStatus::kTile, tile});
  }

  // At a k-block check inside `running`: kTile says that the pipeline parks `running` and runs this
  // tile, then asks next() until it says kResume. A tile is parked only with another one in hand.
  EXPERTPLEX_HOST_DEVICE Claim preempt(PipelineState& pipeline, const TileDescriptor& running) {
    const Decision decision = read_decision(pipeline.cluster);
    if (decision.abort) return {ClaimStatus::kAbort, {}};
    const bool gives_way = decision.park && decision.main_phase == Phase::kDecode &&
                           running.phase == Phase::kPrefill && !pipeline.parked;
    if (!gives_way) return {};
    const Claim claim = take(pipeline, Phase::kDecode, false, LoadedWindows{layout_.shared(base_)});
    if (claim.status == ClaimStatus::kTile) {
      pipeline.parked = true;
      pipeline.parked_tile = running;
      Mem::count(&layout_.cluster(base_, pipeline.cluster)->counters.preemptions, 1);
    }
    return claim;
  }

  // Before a k-block's load, by a prefill producer: what to do while the cluster's resident
  // pipeline has tiles.
  EXPERTPLEX_HOST_DEVICE PausePolicy pause(uint32_t cluster) const {
    return read_decision(cluster).pause;
  }

  // The tile's outputs (this member's part of them) are written. True for exactly one tile of an
  // operation: all its tiles are committed and visible to the caller, which retires the slot and
  // then publishes the done word.
  EXPERTPLEX_HOST_DEVICE bool commit(const TileDescriptor& tile) {
    return commit_tile<Mem>(layout_.slot(base_, tile.phase, tile.slot), tile);
  }

  // Frees the slot of a finished operation. Before the done word: afterwards the sender may send
  // into the slot again, and the agent would find it busy.
  // `order` is relaxed only for a caller that has just made a release fence of its own.
  template <typename O = Release>
  EXPERTPLEX_HOST_DEVICE void retire(const TileDescriptor& tile, O order = {}) {
    retire_operation<Mem>(layout_.slot(base_, tile.phase, tile.slot), tile.epoch, order);
    Mem::count(&layout_.shared(base_)->retired[phase_index(tile.phase)], 1);
  }

  // The fields of the operation that a claimed, not yet committed tile belongs to (or, for the one
  // who was told that it finished, not yet retired).
  EXPERTPLEX_HOST_DEVICE OperationFields operation(const TileDescriptor& tile) const {
    return Mem::read(layout_.slot(base_, tile.phase, tile.slot).fields);
  }

  // Ends the work of all clusters: after the agent's next decision every next() says kAbort.
  EXPERTPLEX_HOST_DEVICE void abort(uint32_t reason) {
    Mem::store(&layout_.shared(base_)->abort_word, reason, Relaxed{}, SystemScope{});
  }
  EXPERTPLEX_HOST_DEVICE uint32_t abort_reason() const {
    return Mem::load(&layout_.shared(base_)->abort_word, Relaxed{}, SystemScope{});
  }

  // Whether any operation is in flight (or finished, and the agent has not looked since): a hint
  // for idle pipelines that choose between a short and a long nap.
  EXPERTPLEX_HOST_DEVICE bool has_operations() const {
    const uint64_t* window = layout_.shared(base_)->ready_window;
    return (Mem::load(&window[0], Relaxed{}, DeviceScope{}) |
            Mem::load(&window[1], Relaxed{}, DeviceScope{})) != 0;
  }

  EXPERTPLEX_HOST_DEVICE const SchedulerLimits& limits() const { return limits_; }
  // For statistics: read the counters with relaxed loads (counters.h does).
  EXPERTPLEX_HOST_DEVICE const ClusterState* cluster_state(uint32_t cluster) const {
    return layout_.cluster(base_, cluster);
  }
  EXPERTPLEX_HOST_DEVICE const SharedState* shared_state() const { return layout_.shared(base_); }

 private:
  EXPERTPLEX_HOST_DEVICE Decision read_decision(uint32_t cluster) const {
    const uint64_t* word = &layout_.cluster(base_, cluster)->preempt_word;
    return unpack_preempt_word(Mem::load(word, Relaxed{}, DeviceScope{})).decision;
  }

  // Reads a window where it is asked for.
  struct LoadedWindows {
    const SharedState* shared;
    EXPERTPLEX_HOST_DEVICE constexpr bool open(Phase) const { return true; }
    // Relaxed: the window only says where to look; who gets a tile acquires with the claim.
    EXPERTPLEX_HOST_DEVICE uint64_t of(Phase phase) const {
      return Mem::load(&shared->ready_window[phase_index(phase)], Relaxed{}, DeviceScope{});
    }
  };

  template <typename Windows>
  EXPERTPLEX_HOST_DEVICE Claim next_while_parked(PipelineState& pipeline, const Decision& decision,
                                                 const Windows& windows) {
    if (decision.main_phase == Phase::kDecode) {
      const Claim claim = take(pipeline, Phase::kDecode, false, windows);
      if (claim.status == ClaimStatus::kTile) return claim;
    }
    pipeline.parked = false;
    return {ClaimStatus::kResume, pipeline.parked_tile};
  }

  // The first claimable tile of the phase's operations that this pipeline computes, oldest first.
  template <typename Windows>
  EXPERTPLEX_HOST_DEVICE Claim take(PipelineState& pipeline, Phase phase, bool borrowed,
                                    const Windows& windows) {
    const auto look = Mem::begin_look();
    for (uint64_t rest = windows.of(phase); rest != 0; rest >>= 8) {
      if (window_entry_role(rest) != pipeline.role) continue;
      const Claim claim = take_from(pipeline, phase, window_entry_slot(rest), borrowed);
      if (claim.status == ClaimStatus::kTile) return claim;
    }
    Mem::end_look(look, 0);
    return {};
  }

  // A tile of the operation in one slot.
  EXPERTPLEX_HOST_DEVICE Claim take_from(PipelineState& pipeline, Phase phase, uint32_t slot,
                                         bool borrowed = false) {
    auto& last = pipeline.last_tile;
    const bool same = pipeline.started && last.phase == phase && last.slot == slot;
    // One tile for every other claimer: fewer may be gone by now.
    uint32_t left = same && last.left > limits_.clusters ? last.left : 0;
    if (same) last.left = 0;
    Claim claim;
    if (!claim_tile<Mem>(layout_.slot(base_, phase, slot), &claim.tile, &left)) return {};
    claim.tile.borrowed = borrowed;
    claim = taken(pipeline, claim);
    last.left = left;
    return claim;
  }

  EXPERTPLEX_HOST_DEVICE Claim taken(PipelineState& pipeline, Claim claim) {
    claim.status = ClaimStatus::kTile;
    ClusterCounters* counters = &layout_.cluster(base_, pipeline.cluster)->counters;
    const TileDescriptor& tile = claim.tile;
    Mem::count(&counters->tiles[phase_index(tile.phase)][static_cast<uint32_t>(tile.kind)], 1);
    if (tile.borrowed) Mem::count(&counters->borrowed, 1);
    if (pipeline.started && pipeline.last_tile.phase != tile.phase) {
      Mem::count(&counters->switches, 1);
    }
    pipeline.started = true;
    pipeline.last_tile.phase = tile.phase;
    pipeline.last_tile.slot = tile.slot;
    pipeline.last_tile.epoch = tile.epoch;
    pipeline.last_tile.left = 0;
    return claim;
  }

  SchedulerLimits limits_;
  StorageLayout layout_;
  void* base_;
};

}  // namespace expertplex::apk
