// The scheduler in one thread: what is decided, in which order tiles come, what is refused.
#include "apk/scheduler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "apk/counters.h"
#include "apk/host_memory.h"

namespace expertplex::apk {
namespace {

constexpr uint32_t kExperts = 2;
constexpr uint32_t kSlots = 10;

OperationTemplate make_template(Phase phase, uint8_t slot) {
  OperationTemplate shape;
  shape.phase = phase;
  shape.slot = slot;
  shape.experts = kExperts;
  shape.hidden = 4;
  shape.intermediate = 4;
  shape.gate_up = {4, 2};
  shape.down = {4, 4};
  shape.reduce_tokens = phase == Phase::kPrefill ? 8 : 0;
  shape.row_group = 2;
  shape.max_row_blocks = 16;
  shape.max_tokens = 64;
  return shape;
}

class Scheduler : public testing::Test {
 protected:
  void SetUp() override { start(4); }

  void start(uint32_t clusters) {
    limits_.clusters = clusters;
    limits_.slots[0] = limits_.slots[1] = kSlots;
    limits_.experts = kExperts;
    limits_.row_blocks[0] = limits_.row_blocks[1] = 16;
    ASSERT_TRUE(valid_limits(limits_));
    storage_.reset(std::aligned_alloc(kStorageAlignment, storage_bytes(limits_)));
    initialise_storage(limits_, storage_.get());
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      for (uint8_t s = 0; s < kSlots; ++s) {
        ASSERT_EQ(install_template(limits_, storage_.get(), make_template(phase, s)),
                  OperationFault::kNone);
      }
    }
    policy_.budget = {.decode_sms = 1,
                      .max_decode_sms = 3,
                      .expected_footprint_milli = 1000,
                      .sms_per_cluster = 1};
  }

  TileScheduler<HostMemory> scheduler() { return {limits_, storage_.get()}; }

  SubmitResult submit(Phase phase, uint32_t slot, uint32_t epoch, std::vector<uint32_t> rows,
                      uint32_t tokens = 0) {
    AgentRole<HostMemory> agent = scheduler().try_become_agent();
    EXPECT_TRUE(agent);
    OperationRequest request;
    request.epoch = epoch;
    request.layer = slot;
    request.participant_mask = 5;
    request.tokens = tokens;
    request.rows_per_expert = rows.data();
    const SubmitResult result = agent.submit(phase, slot, request);
    fault_ = agent.fault();
    return result;
  }
  bool decide() {
    AgentRole<HostMemory> agent = scheduler().try_become_agent();
    return agent.decide(policy_);
  }
  Claim next(uint32_t cluster) {
    PipelineState pipeline;
    pipeline.cluster = cluster;
    return scheduler().next(pipeline);
  }
  // Commits; retires the operation if that was the last tile.
  bool commit(const TileDescriptor& tile) {
    if (!scheduler().commit(tile)) return false;
    scheduler().retire(tile);
    return true;
  }
  Phase phase_of(uint32_t cluster) {
    const Claim claim = next(cluster);
    EXPECT_EQ(claim.status, ClaimStatus::kTile);
    return claim.tile.phase;
  }

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  SchedulerLimits limits_;
  std::unique_ptr<void, Free> storage_;
  SharingPolicy policy_;
  OperationFault fault_ = OperationFault::kNone;
};

TEST_F(Scheduler, RunsAnOperationToItsEndAndFreesTheSlot) {
  ASSERT_EQ(submit(Phase::kPrefill, 3, 1, {5, 1}, 9), SubmitResult::kSubmitted);
  EXPECT_TRUE(decide());
  // 3 row blocks: 6 GateUp, 3 Down, 2 Reduce.
  for (uint32_t i = 0; i < 11; ++i) {
    const Claim claim = next(0);
    ASSERT_EQ(claim.status, ClaimStatus::kTile) << i;
    EXPECT_EQ(claim.tile.kind, i < 6   ? TileKind::kGateUp
                               : i < 9 ? TileKind::kDown
                                       : TileKind::kReduce);
    EXPECT_EQ(scheduler().operation(claim.tile).participant_mask, 5u);
    EXPECT_EQ(commit(claim.tile), i == 10) << i;
  }
  EXPECT_EQ(next(0).status, ClaimStatus::kNothing);
  EXPECT_EQ(submit(Phase::kPrefill, 3, 1, {5, 1}, 9), SubmitResult::kFault);
  EXPECT_EQ(fault_, OperationFault::kBadEpoch);
  EXPECT_EQ(submit(Phase::kPrefill, 3, 2, {5, 1}, 9), SubmitResult::kSubmitted);
  EXPECT_EQ(submit(Phase::kPrefill, 3, 3, {5, 1}, 9), SubmitResult::kBusy);
}

TEST_F(Scheduler, AnOperationWithoutTilesIsDoneAtOnce) {
  EXPECT_EQ(submit(Phase::kDecode, 0, 1, {0, 0}), SubmitResult::kEmpty);
  EXPECT_EQ(submit(Phase::kDecode, 0, 2, {0, 1}), SubmitResult::kSubmitted);
  // No rows on this server, but tokens whose sums must be written.
  EXPECT_EQ(submit(Phase::kPrefill, 0, 1, {0, 0}, 3), SubmitResult::kSubmitted);
  decide();
  const Claim claim = next(3);
  ASSERT_EQ(claim.status, ClaimStatus::kTile);
  EXPECT_EQ(claim.tile.kind, TileKind::kReduce);
  EXPECT_EQ(claim.tile.row_count, 3u);
  EXPECT_TRUE(commit(claim.tile));
}

TEST_F(Scheduler, RefusesWhatDoesNotFit) {
  EXPECT_EQ(submit(Phase::kDecode, kSlots, 1, {1, 1}), SubmitResult::kFault);
  EXPECT_EQ(fault_, OperationFault::kNoSuchSlot);
  EXPECT_EQ(submit(Phase::kDecode, 0, 0, {1, 1}), SubmitResult::kFault);
  EXPECT_EQ(fault_, OperationFault::kBadEpoch);
  EXPECT_EQ(submit(Phase::kDecode, 0, 1, {65, 1}), SubmitResult::kFault);
  EXPECT_EQ(fault_, OperationFault::kTooManyRowBlocks);
  EXPECT_EQ(submit(Phase::kPrefill, 0, 1, {1, 1}, 65), SubmitResult::kFault);
  EXPECT_EQ(fault_, OperationFault::kTooManyTokens);
  OperationTemplate shape = make_template(Phase::kDecode, kSlots);
  EXPECT_EQ(install_template(limits_, storage_.get(), shape), OperationFault::kNoSuchSlot);
  shape.slot = 0;
  shape.experts = kExperts + 1;
  EXPECT_EQ(install_template(limits_, storage_.get(), shape), OperationFault::kTooManyExperts);
}

TEST_F(Scheduler, UnderContentionDecodeGetsItsBudgetAndPrefillTheRest) {
  submit(Phase::kPrefill, 0, 1, {32, 32});
  submit(Phase::kDecode, 0, 1, {8, 0});  // footprint 2, so q_t = 2
  decide();
  EXPECT_EQ(phase_of(0), Phase::kDecode);
  EXPECT_EQ(phase_of(1), Phase::kDecode);
  EXPECT_EQ(phase_of(2), Phase::kPrefill);
  EXPECT_EQ(phase_of(3), Phase::kPrefill);
}

TEST_F(Scheduler, OnePhaseAloneGetsEverythingAndLendsBackWithinOneDecision) {
  submit(Phase::kDecode, 0, 1, {4, 0});  // 2 GateUp, 1 Down
  decide();
  const Claim first = next(3);
  EXPECT_EQ(first.tile.phase, Phase::kDecode);
  submit(Phase::kPrefill, 0, 1, {32, 32});
  decide();
  const Claim second = next(0);
  EXPECT_EQ(second.tile.phase, Phase::kDecode);
  commit(first.tile);
  commit(second.tile);
  const Claim down = next(0);
  EXPECT_EQ(down.tile.kind, TileKind::kDown);
  EXPECT_TRUE(decide());  // decode has nothing left to claim, though it still runs
  policy_.lend_while_waiting = false;
  EXPECT_EQ(phase_of(0), Phase::kPrefill);
  EXPECT_TRUE(commit(down.tile));
}

TEST_F(Scheduler, LendsInTheGapBetweenStagesOnlyIfThePolicySaysSo) {
  submit(Phase::kDecode, 0, 1, {1, 0});
  submit(Phase::kPrefill, 0, 1, {32, 32});
  for (const bool lend : {false, true}) {
    policy_.lend_while_waiting = lend;
    decide();
    if (!lend) {
      EXPECT_EQ(next(0).tile.phase, Phase::kDecode);
      EXPECT_EQ(next(0).tile.phase, Phase::kDecode);  // both GateUp tiles; Down waits for them
    }
    const Claim claim = next(0);
    EXPECT_EQ(claim.status, lend ? ClaimStatus::kTile : ClaimStatus::kNothing);
    EXPECT_EQ(claim.tile.borrowed, lend ? 1 : 0);
  }
  EXPECT_EQ(read_counters(scheduler()).borrowed, 1u);
}

TEST_F(Scheduler, WithoutPreemptionAClusterFinishesWhatItIsOn) {
  policy_.preemption_enabled = false;
  submit(Phase::kPrefill, 0, 1, {4, 0});  // 2 GateUp, 1 Down
  decide();
  PipelineState pipeline;
  const Claim first = scheduler().next(pipeline);
  submit(Phase::kDecode, 0, 1, {4, 0});
  decide();
  const Claim second = scheduler().next(pipeline);
  EXPECT_EQ(second.tile.phase, Phase::kPrefill);
  EXPECT_EQ(scheduler().next(pipeline).status, ClaimStatus::kNothing);  // Down waits, so it does
  commit(first.tile);
  commit(second.tile);
  EXPECT_EQ(scheduler().next(pipeline).tile.kind, TileKind::kDown);
  EXPECT_EQ(scheduler().next(pipeline).tile.phase, Phase::kDecode);
  EXPECT_EQ(read_counters(scheduler()).switches, 1u);
}

TEST_F(Scheduler, OperationsOfAPhaseAreServedInOrderOfArrivalBeyondTheWindow) {
  for (uint32_t s = 0; s < kSlots; ++s) {  // more than kReadyWindow
    ASSERT_EQ(submit(Phase::kDecode, (s * 3) % kSlots, 1, {1, 0}), SubmitResult::kSubmitted);
  }
  EXPECT_EQ(read_counters(scheduler()).queue_depth[1], kSlots);
  for (uint32_t s = 0; s < kSlots; ++s) {
    decide();
    const Claim a = next(0), b = next(1);
    EXPECT_EQ(a.tile.slot, (s * 3) % kSlots);
    EXPECT_EQ(b.tile.slot, a.tile.slot);
    commit(a.tile);
    commit(b.tile);
    const Claim down = next(2);
    EXPECT_EQ(down.tile.slot, a.tile.slot);
    EXPECT_TRUE(commit(down.tile));
  }
  const SchedulerCounters counters = read_counters(scheduler());
  EXPECT_EQ(counters.queue_depth[1], 0u);
  EXPECT_EQ(counters.submitted[1], kSlots);
  EXPECT_EQ(counters.phase_tiles(Phase::kDecode), 3 * kSlots);
  decide();
  EXPECT_FALSE(scheduler().has_operations());
}

TEST_F(Scheduler, AResidentPipelineRunsDecodeBesidePrefillAndPausesIt) {
  OperationTemplate shape = make_template(Phase::kDecode, 0);
  shape.pipeline = PipelineRole::kResident;
  ASSERT_EQ(install_template(limits_, storage_.get(), shape), OperationFault::kNone);
  policy_.mode = SwitchMode::kTwoPipelines;
  policy_.pause = PausePolicy::kWindow2;
  submit(Phase::kPrefill, 0, 1, {32, 32});
  submit(Phase::kDecode, 0, 1, {1, 0});
  decide();
  EXPECT_EQ(scheduler().pause(2), PausePolicy::kWindow2);
  PipelineState resident;
  resident.cluster = 2;
  resident.role = PipelineRole::kResident;
  for (uint32_t i = 0; i < 3; ++i) {
    const Claim claim = scheduler().next(resident);
    ASSERT_EQ(claim.status, ClaimStatus::kTile);
    EXPECT_EQ(claim.tile.phase, Phase::kDecode);
    EXPECT_EQ(phase_of(i), Phase::kPrefill);  // main pipelines go on, on every cluster
    commit(claim.tile);
  }
  decide();
  EXPECT_EQ(scheduler().next(resident).status, ClaimStatus::kNothing);
}

TEST_F(Scheduler, ParksAPrefillTileOnlyWithADecodeTileInHand) {
  policy_.mode = SwitchMode::kParking;
  submit(Phase::kPrefill, 0, 1, {32, 32});
  decide();
  PipelineState pipeline;
  const Claim prefill = scheduler().next(pipeline);
  EXPECT_EQ(scheduler().preempt(pipeline, prefill.tile).status, ClaimStatus::kNothing);
  submit(Phase::kDecode, 0, 1, {1, 0});
  decide();
  const Claim first = scheduler().preempt(pipeline, prefill.tile);
  ASSERT_EQ(first.status, ClaimStatus::kTile);
  EXPECT_EQ(first.tile.phase, Phase::kDecode);
  const Claim second = scheduler().next(pipeline);
  EXPECT_EQ(second.tile.phase, Phase::kDecode);
  const Claim resumed = scheduler().next(pipeline);  // Down waits for the two: back to prefill
  EXPECT_EQ(resumed.status, ClaimStatus::kResume);
  EXPECT_EQ(resumed.tile, prefill.tile);
  EXPECT_EQ(scheduler().preempt(pipeline, prefill.tile).status, ClaimStatus::kNothing);
  commit(first.tile);
  commit(second.tile);
  EXPECT_EQ(scheduler().preempt(pipeline, prefill.tile).tile.kind, TileKind::kDown);
  EXPECT_EQ(read_counters(scheduler()).preemptions, 2u);
}

// A pipeline that saw many tiles left claims the next without a look; when it was wrong, it got
// nothing, and nothing is lost for the slot's next operation.
TEST_F(Scheduler, AClaimWithoutALookThatComesTooLate) {
  start(1);
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    submit(Phase::kPrefill, 0, epoch, {32, 32});  // 16 row blocks of 2 + 1 tiles
    decide();
    PipelineState ahead, late;
    const auto take = [&](PipelineState& pipeline) {
      const Claim claim = scheduler().next(pipeline);
      EXPECT_EQ(claim.status, ClaimStatus::kTile);
      EXPECT_EQ(claim.tile.epoch, epoch);
      EXPECT_EQ(claim.tile.kind, TileKind::kGateUp);
      return claim.tile;
    };
    std::vector<TileDescriptor> tiles = {take(late)};
    EXPECT_EQ(late.last_tile.left, 31u);
    while (tiles.size() < 32) tiles.push_back(take(ahead));
    EXPECT_EQ(ahead.last_tile.left, 0u);
    EXPECT_EQ(scheduler().next(late).status, ClaimStatus::kNothing);
    EXPECT_EQ(late.last_tile.left, 0u);
    for (const TileDescriptor& tile : tiles) commit(tile);
    for (uint32_t i = 0; i < 16; ++i) {
      const Claim down = scheduler().next(late);
      ASSERT_EQ(down.tile.kind, TileKind::kDown);
      commit(down.tile);
    }
    EXPECT_EQ(scheduler().next(late).status, ClaimStatus::kNothing);
  }
  EXPECT_EQ(read_counters(scheduler()).queue_depth[0], 0u);
}

TEST_F(Scheduler, AbortReachesEveryPipelineWithTheNextDecision) {
  submit(Phase::kPrefill, 0, 1, {32, 32});
  decide();
  scheduler().abort(17);
  EXPECT_EQ(next(1).status, ClaimStatus::kTile);
  decide();
  for (uint32_t c = 0; c < 4; ++c) EXPECT_EQ(next(c).status, ClaimStatus::kAbort);
  EXPECT_EQ(scheduler().abort_reason(), 17u);
}

TEST_F(Scheduler, OnlyOneIsTheDecidingAgent) {
  AgentRole<HostMemory> agent = scheduler().try_become_agent();
  EXPECT_TRUE(agent);
  EXPECT_FALSE(scheduler().try_become_agent());
  agent.release();
  EXPECT_TRUE(scheduler().try_become_agent());
  EXPECT_TRUE(scheduler().try_become_agent());  // the one before gave it back by itself
}

TEST_F(Scheduler, AClusterOfTwoCommitsEachTileTwice) {
  OperationTemplate shape = make_template(Phase::kDecode, 0);
  shape.commits_per_tile = 2;
  ASSERT_EQ(install_template(limits_, storage_.get(), shape), OperationFault::kNone);
  submit(Phase::kDecode, 0, 1, {1, 0});
  decide();
  const Claim a = next(0), b = next(0);
  for (const auto& tile : {a.tile, b.tile, a.tile}) EXPECT_FALSE(commit(tile));
  EXPECT_EQ(next(0).status, ClaimStatus::kNothing);
  EXPECT_FALSE(commit(b.tile));
  const Claim down = next(0);
  ASSERT_EQ(down.tile.kind, TileKind::kDown);
  EXPECT_FALSE(commit(down.tile));
  EXPECT_TRUE(commit(down.tile));
}

// GateUp alone, as a bench of one GEMM runs it: every tile once, the last commit finishes it, and
// the slot takes the next operation.
TEST_F(Scheduler, AnOperationWithoutDownEndsAfterGateUp) {
  OperationTemplate shape = make_template(Phase::kDecode, 0);
  shape.hidden = 0;
  shape.down = {};
  shape.commits_per_tile = 2;
  ASSERT_EQ(install_template(limits_, storage_.get(), shape), OperationFault::kNone);
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    ASSERT_EQ(submit(Phase::kDecode, 0, epoch, {9, 1}), SubmitResult::kSubmitted);
    decide();
    std::vector<TileDescriptor> tiles;
    for (Claim claim = next(0); claim.status == ClaimStatus::kTile; claim = next(0)) {
      EXPECT_EQ(claim.tile.kind, TileKind::kGateUp);
      tiles.push_back(claim.tile);
    }
    ASSERT_EQ(tiles.size(), 4u * 2u);  // row blocks 3 + 1, two columns
    for (size_t part = 0; part < 2 * tiles.size(); ++part) {
      const bool last = part + 1 == 2 * tiles.size();
      ASSERT_EQ(scheduler().commit(tiles[part / 2]), last) << part;
    }
    scheduler().retire(tiles.back());
    decide();
    EXPECT_EQ(next(0).status, ClaimStatus::kNothing);
  }
  shape.reduce_tokens = 8;
  EXPECT_NE(check_template(shape), OperationFault::kNone);
}

TEST(ReadyWindow, EntriesNameSlotAndPipeline) {
  for (uint32_t slot = 0; slot < kMaxSlotsPerPhase; ++slot) {
    for (const PipelineRole role : {PipelineRole::kMain, PipelineRole::kResident}) {
      const uint64_t entry = pack_window_entry(slot, role);
      EXPECT_NE(entry, 0u);
      EXPECT_EQ(window_entry_slot(entry), slot);
      EXPECT_EQ(window_entry_role(entry), role);
      for (uint32_t at = 0; at < kReadyWindow; ++at) {
        EXPECT_EQ(window_has_entry_for(entry << (8 * at), PipelineRole::kMain),
                  role == PipelineRole::kMain);
        EXPECT_EQ(window_has_entry_for(entry << (8 * at), PipelineRole::kResident),
                  role == PipelineRole::kResident);
      }
    }
  }
  EXPECT_FALSE(window_has_entry_for(0, PipelineRole::kMain));
  EXPECT_FALSE(window_has_entry_for(0, PipelineRole::kResident));
  const uint64_t both = pack_window_entry(63, PipelineRole::kResident) |
                        uint64_t{pack_window_entry(0, PipelineRole::kMain)} << 8;
  EXPECT_TRUE(window_has_entry_for(both, PipelineRole::kMain));
  EXPECT_TRUE(window_has_entry_for(both, PipelineRole::kResident));
}

}  // namespace
}  // namespace expertplex::apk
