// The program that the explorer walks: a small MoE server. Clusters (of one or two members) run the
// scheduling core as a GPU kernel or CPU threads would, a sender makes operations ready, and the
// checker looks on: no tile lost or doubled, dependencies, order of all plain data, one decision
// per pipeline, one deciding agent, the preemption bound, and an end to every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apk/explorer.h"
#include "apk/handoff.h"
#include "apk/model_memory.h"
#include "apk/preemption_bound.h"
#include "apk/scheduler.h"
#include "base/check.h"

namespace expertplex::apk {

constexpr uint32_t kHandoffDepth = 1;
constexpr uint32_t kMaxModelClusters = 2;
constexpr uint32_t kMaxModelMembers = 2;
constexpr uint32_t kMaxModelTiles = 8;

// Broken twins that live in the program and not in the memory policy.
enum class Twin {
  kNone,
  kMembersDecide,   // every member reads the preempt word and picks its next tile by itself
  kSameEpochAgain,  // a slot's second operation carries the epoch of its first
  kNoDependency,    // Down opens with the first GateUp tile of a row block
  kLateLook,        // the finisher looks at the operation after it has given the slot away
  kNoAcquire,       // an announced tile is begun without acquiring its sender's ready word
  kNoCredit,        // the leader overwrites a message whether or not it has been taken
};

struct SharingConfig {
  uint32_t clusters = 2;
  uint32_t members = 1;
  // A claiming warp of its own tells all members; else member 0 claims and tells the others.
  bool own_claimer = false;
  // As on a CPU: members take the deciding agent's role in turn; else an agent of its own.
  bool agent_is_role = false;
  SharingPolicy policy;
  PipelineRole decode_pipeline = PipelineRole::kMain;
  // Clusters with a main pipeline and with a resident one (where decode runs in it): the first so
  // many and the last so many.
  uint32_t main_pipelines = kMaxModelClusters, resident_pipelines = kMaxModelClusters;
  // Rows per expert (tile height 1, so row blocks) and column tiles; 0 rows: no such operation.
  uint32_t prefill_rows = 2, prefill_columns = 1, prefill_tokens = 0;
  uint32_t decode_rows = 1, decode_columns = 1;
  bool decode_has_down = true;
  bool announced = false;      // decode operations are announced (announcement.h); GateUp only
  uint32_t decode_epochs = 1;  // decode operations in the same slot, one after the other
  uint32_t down_scan_window = 8;
  uint32_t k_blocks = 1;        // of a prefill tile; a check follows each but the last
  bool interleave_all = false;  // trust no argument about words that nobody else touches
  Twin twin = Twin::kNone;
};

template <typename Mem>
class SharingModel : public Model {
 public:
  explicit SharingModel(SharingConfig config) : config_(std::move(config)) {
    if (!config_.agent_is_role) roles_.push_back({Kind::kAgent, 0, 0, PipelineRole::kMain});
    for (uint32_t c = 0; c < config_.clusters; ++c) {
      if (config_.own_claimer) roles_.push_back({Kind::kClaimer, c, 0, PipelineRole::kMain});
      for (uint32_t m = 0; m < config_.members; ++m) {
        if (c < config_.main_pipelines) {
          roles_.push_back({Kind::kMember, c, m, PipelineRole::kMain});
        }
        if (config_.decode_pipeline == PipelineRole::kResident &&
            c + config_.resident_pipelines >= config_.clusters) {
          roles_.push_back({Kind::kMember, c, m, PipelineRole::kResident});
        }
      }
    }
    if (has_sender()) roles_.push_back({Kind::kSender, 0, 0, PipelineRole::kMain});
  }

  int fibers() const override { return static_cast<int>(roles_.size()); }
  std::string fiber_name(int fiber) const override;
  void build(Explorer& explorer) override;
  void run(int fiber) override;
  bool is_local(const Explorer& explorer, const void* word, Access access) const override;
  bool complete() const override;
  std::pair<void*, size_t> checker_state() override { return {&ghost_, sizeof(ghost_)}; }
  void after_step(Explorer& explorer) override;
  void on_write(const void* word, uint64_t value) override;

  // The most that was seen over all schedules, to show that the bound is tight.
  PreemptionBound most() const { return most_; }
  uint64_t borrowed_seen() const { return borrowed_seen_; }
  uint64_t parked_seen() const { return parked_seen_; }
  PreemptionBound bound() const {
    return preemption_bound(config_.policy.mode, hands_on() ? kHandoffDepth : 0, 1);
  }

 private:
  enum class Kind { kAgent, kClaimer, kMember, kSender };
  struct Role {
    Kind kind;
    uint32_t cluster;
    uint32_t member;
    PipelineRole pipeline;
  };
  using Ring = HandoffRing<kHandoffDepth>;

  // The words of the program beside the scheduler's storage.
  struct Words {
    uint32_t ready_word[kPhaseCount];            // epoch; sender -> agent
    uint32_t done_word[kPhaseCount];             // epoch; finisher -> sender
    uint64_t offer_word;                         // of the decode slot; agent -> claimers
    alignas(8) uint32_t submitted[kPhaseCount];  // the agent's memory of ready words; plain
    // Multicast: member m has begun its n-th tile of the pipeline, n + 1. The partner must be
    // there.
    alignas(8) uint32_t arrived[kMaxModelClusters][2][kMaxModelMembers];
    // By cluster, pipeline, member.
    alignas(8) uint32_t taken[kMaxModelClusters][2][kMaxModelMembers];
    // A resident pipeline of the cluster is on a tile; it -> the cluster's main pipeline.
    alignas(8) uint32_t resident_tiles[kMaxModelClusters];
    alignas(8) Ring rings[kMaxModelClusters][2][kMaxModelMembers];
  };

  // Checker state; part of the hash.
  struct Ghost {
    uint32_t deciders = 0;
    uint32_t decider = 0;                   // 1 + fiber
    uint32_t submitted[kPhaseCount] = {};   // epoch
    uint32_t claimed[kPhaseCount] = {};     // bit per tile of the operation in flight
    uint32_t written[kPhaseCount][2] = {};  // bit per tile, by member
    uint32_t finished[kPhaseCount] = {};
    uint32_t decode_visible = 0;          // bit per cluster: its word says decode
    uint32_t in_next = 0, saw_empty = 0;  // bit per fiber
    uint8_t old_claims[kMaxModelClusters] = {};
    uint8_t old_tiles[kMaxModelClusters][2] = {};
    uint8_t old_k_blocks[kMaxModelClusters][2] = {};
    // What each member of a pipeline is on, by cluster, pipeline, member and parity of its tile
    // count.
    uint16_t tile_at[kMaxModelClusters][2][2][2] = {};
    uint32_t parked = 0;          // bit per cluster * 2 + member
    uint32_t decode_in_hand = 0;  // the same: claimed, not begun by that member
  };

  struct Operation {
    uint32_t rows, columns, tokens;
    bool down = true;
    uint32_t tiles() const { return rows * columns * (down ? 2 : 1) + tokens; }
  };
  Operation operation(Phase phase) const {
    if (phase == Phase::kDecode) {
      const bool down = config_.decode_has_down && !config_.announced;
      return {config_.decode_rows, config_.decode_columns, 0, down};
    }
    return {config_.prefill_rows, config_.prefill_columns, config_.prefill_tokens, true};
  }

  // A member's place in the program, kept over the calls below.
  struct Place {
    Role role;
    PipelineState pipeline;
    uint32_t tiles = 0;      // begun; counted where a partner follows
    uint64_t context = 0;    // inside which parked tile
    uint32_t announced = 0;  // epoch of the latest operation of which it knows what it owns
    HandoffSender<Mem, kHandoffDepth>* sender = nullptr;
    HandoffReceiver<Mem, kHandoffDepth>* receiver = nullptr;
  };

  uint32_t epochs(Phase phase) const {
    if (operation(phase).rows == 0) return 0;
    return phase == Phase::kDecode ? config_.decode_epochs : 1;
  }
  bool hands_on() const { return config_.own_claimer || config_.members > 1; }
  // Members from this one on are told; those before claim.
  uint32_t first_told() const { return config_.own_claimer ? 0 : 1; }
  bool asks(const Role& role) const {
    return role.kind == Kind::kClaimer || (role.member < first_told());
  }
  bool has_sender() const { return config_.decode_epochs > 1 || config_.announced; }
  Explorer& explorer() const { return Explorer::current(); }
  TileScheduler<Mem> scheduler() const { return {limits_, base_}; }
  void require(bool condition, const char* message) {
    if (!condition) explorer().report(message);
  }
  static uint32_t bit_of(const Operation& op, const TileDescriptor& tile);
  int output_region(const TileDescriptor& tile, uint32_t index, uint32_t member) const {
    return outputs_[phase_index(tile.phase)][index][member];
  }
  bool decode_claimable() const;
  bool is_settled(const Explorer& explorer, const void* word) const;
  uint32_t commits_of(const void* word) const;

  void run_agent();
  void agent_round(AgentRole<Mem>& agent, uint64_t context);
  void run_sender();
  void run_member(const Role& role);
  void run_member_alone(const Role& role);  // Twin::kMembersDecide
  uint64_t local_state(const Place& place, uint64_t tag) const;
  void checkpoint(const Place& place, uint64_t tag) {
    explorer().checkpoint(local_state(place, tag));
  }
  Claim next_claim(Place& place);
  Claim announced_claim(Place& place);
  void hand_on(Place& place, const Claim& claim);
  Claim verdict(Place& place, const TileDescriptor& running);
  void run_tile(Place& place, const TileDescriptor& tile);
  void run_k_blocks(Place& place, const TileDescriptor& tile);
  void note_k_block(const Place& place);
  void run_parked(Place& place, const TileDescriptor& tile, Claim claim, uint32_t k);
  void meet_partner(Place& place, const TileDescriptor& tile);
  void write_outputs(Place& place, const TileDescriptor& tile);
  void commit(Place& place, const TileDescriptor& tile);
  void finish(const TileDescriptor& tile);
  void note_claim(const Place& place, const TileDescriptor& tile);
  void note_begin(const Place& place, const TileDescriptor& tile);

  SharingConfig config_;
  std::vector<Role> roles_;
  SchedulerLimits limits_;
  void* base_ = nullptr;
  Words* words_ = nullptr;
  int rows_region_ = 0;
  int outputs_[kPhaseCount][kMaxModelTiles][kMaxModelMembers] = {};
  Ghost ghost_;
  PreemptionBound most_;
  uint64_t borrowed_seen_ = 0;
  uint64_t parked_seen_ = 0;
};

}  // namespace expertplex::apk

#include "apk/sharing_checker_inl.h"
#include "apk/sharing_program_inl.h"
