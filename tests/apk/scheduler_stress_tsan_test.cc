// Threads as CTA clusters, several senders, random operations of both phases, under the thread
// sanitizer: every tile exactly once, dependencies respected, every operation finishes once. Tile
// outputs, operation fields, handed-over messages and the agent's data are plain memory, so a lost
// release or acquire is a report of the sanitizer. Cases: CPU workers, clusters of two threads
// (leader and member), a resident pipeline beside the main one, parking. Own main: gtest is not
// built with the sanitizer.
//
// With the argument `lost_release` the words are published relaxed: the canary, which must end in a
// report.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "apk/counters.h"
#include "apk/handoff.h"
#include "apk/host_memory.h"
#include "apk/scheduler.h"
#include "base/check.h"
#include "base/random.h"

namespace expertplex::apk {
namespace {

// The broken twin of HostMemory.
class LostRelease : public HostMemory {
 public:
  template <typename T, typename O, typename S>
  static void store(T* word, T value, O, S scope) {
    HostMemory::store(word, value, Relaxed{}, scope);
  }
};

constexpr uint32_t kClusters = 4;
constexpr uint32_t kSendersPerPhase = 2;
constexpr uint32_t kExperts = 5;
constexpr uint32_t kRowBlocks = 24;
constexpr uint32_t kMaxTokens = 24;
constexpr uint32_t kDepth = 2;
constexpr uint64_t kMaxLooks = 100'000'000;  // limit of every wait here

struct Case {
  const char* name = "";
  uint32_t members = 1;
  bool resident = false;  // decode runs in a resident pipeline
  SharingPolicy policy;
  uint32_t operations = 0;  // per sender
};

// One slot: its sender's mailbox, and what the tiles compute. The mailbox is published with the
// ready word, the rest with claims, commits and the done word.
struct Slot {
  OperationTemplate shape;
  uint32_t rows[kExperts] = {};
  uint32_t tokens = 0;
  std::atomic<uint32_t> ready_word{0};
  std::atomic<uint32_t> done_word{0};
  uint32_t submitted = 0;                         // the agent's
  std::vector<uint32_t> outputs[kTileKindCount];  // tile, member -> epoch in which it was computed
};

// Between the leader and the member of one pipeline.
struct Team {
  HandoffRing<kDepth> ring;
  uint32_t taken = 0;
};

struct Server {
  Case setup;
  SchedulerLimits limits;
  void* storage = nullptr;
  Slot slots[kPhaseCount][kSendersPerPhase];
  Team teams[kClusters][2];
  std::atomic<uint64_t> tiles{0};
};

template <typename Mem>
void run_agent_round(Server& server, AgentRole<Mem>& agent) {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t s = 0; s < kSendersPerPhase; ++s) {
      Slot& slot = server.slots[phase_index(phase)][s];
      const uint32_t ready = slot.ready_word.load(std::memory_order_acquire);
      if (ready == slot.submitted) continue;
      OperationRequest request;
      request.epoch = ready;
      request.tokens = slot.tokens;
      request.rows_per_expert = slot.rows;
      const SubmitResult result = agent.submit(phase, s, request);
      EXPERTPLEX_CHECK(result == SubmitResult::kSubmitted || result == SubmitResult::kEmpty,
                       "submit: {} {}", static_cast<int>(result),
                       operation_fault_name(agent.fault()));
      slot.submitted = ready;
      if (result == SubmitResult::kEmpty) {
        slot.done_word.store(ready, std::memory_order_release);
      }
    }
  }
  agent.decide(server.setup.policy);
}

// One thread: a leader or a member of one pipeline of one cluster.
template <typename Mem>
class Worker {
 public:
  Worker(Server& server, uint32_t cluster, uint32_t member, PipelineRole role)
      : server_(server),
        scheduler_(server.limits, server.storage),
        member_(member),
        team_(server.teams[cluster][static_cast<uint32_t>(role)]),
        rings_{&team_.ring},
        sender_(rings_, server.setup.members - 1, &team_.taken, server.setup.members - 1),
        receiver_(&team_.ring, &team_.taken),
        random_(1000 + cluster * 10 + member) {
    pipeline_.cluster = cluster;
    pipeline_.role = role;
  }

  void run() {
    while (true) {
      const Claim claim = next();
      if (claim.status == ClaimStatus::kAbort) return;
      if (claim.status == ClaimStatus::kTile) run_tile(claim.tile);
    }
  }

 private:
  // The leader asks and tells its member; the member is told.
  Claim next() {
    if (member_ > 0) return receive();
    if (auto agent = scheduler_.try_become_agent()) run_agent_round(server_, agent);
    const Claim claim = scheduler_.next(pipeline_);
    if (claim.status == ClaimStatus::kNothing) {
      std::this_thread::yield();
    } else {
      hand_on(claim);
    }
    return claim;
  }

  void hand_on(const Claim& claim) {
    for (uint64_t look = 0; !sender_.try_send(claim); ++look) {
      EXPERTPLEX_CHECK(look < kMaxLooks, "the member takes nothing");
      std::this_thread::yield();
    }
  }

  Claim receive() {
    Claim claim;
    for (uint64_t look = 0; !receiver_.try_receive(&claim); ++look) {
      EXPERTPLEX_CHECK(look < kMaxLooks, "the leader says nothing");
      std::this_thread::yield();
    }
    return claim;
  }

  void run_tile(const TileDescriptor& tile) {
    Slot& slot = server_.slots[phase_index(tile.phase)][tile.slot];
    const OperationFields fields = scheduler_.operation(tile);
    EXPERTPLEX_CHECK(fields.epoch == tile.epoch);
    if (tile.phase == Phase::kPrefill && server_.setup.policy.mode == SwitchMode::kParking) {
      check_for_decode(tile);
    }
    compute(slot, tile, fields);
    if (random_.chance(0.05)) std::this_thread::yield();
    if (member_ == 0) server_.tiles.fetch_add(1, std::memory_order_relaxed);
    if (!scheduler_.commit(tile)) return;
    scheduler_.retire(tile);
    slot.done_word.store(tile.epoch, std::memory_order_release);
  }

  // The k-block check in the middle of a prefill tile.
  void check_for_decode(const TileDescriptor& running) {
    Claim claim;
    if (member_ == 0) {
      claim = scheduler_.preempt(pipeline_, running);
      // A leader that is told to abort finishes its tile first.
      if (claim.status == ClaimStatus::kAbort) claim = {};
      hand_on(claim);
    } else {
      claim = receive();
    }
    while (claim.status == ClaimStatus::kTile) {
      run_tile(claim.tile);
      claim = next();
      EXPERTPLEX_CHECK(claim.status != ClaimStatus::kNothing, "parked without a way back");
    }
    if (claim.status == ClaimStatus::kResume) EXPERTPLEX_CHECK(claim.tile == running);
  }

  // Marks this member's part of a tile as computed in this epoch, exactly once, after all parts
  // that it depends on.
  void compute(Slot& slot, const TileDescriptor& tile, const OperationFields& fields) {
    const uint32_t members = server_.setup.members;
    const uint32_t gate_up_columns = slot.shape.gate_up_columns();
    uint32_t index = tile.row_block;
    if (tile.kind == TileKind::kGateUp) {
      index = tile.row_block * gate_up_columns + tile.column_tile;
    } else if (tile.kind == TileKind::kDown) {
      index = tile.row_block * slot.shape.down_columns() + tile.column_tile;
      expect_computed(slot.outputs[0], tile.row_block * gate_up_columns * members,
                      gate_up_columns * members, tile.epoch);
    } else {
      expect_computed(slot.outputs[1], 0, fields.down_tiles * members, tile.epoch);
    }
    uint32_t& output = slot.outputs[static_cast<uint32_t>(tile.kind)][index * members + member_];
    EXPERTPLEX_CHECK(output < tile.epoch, "a tile was computed twice");
    output = tile.epoch;
  }

  static void expect_computed(const std::vector<uint32_t>& outputs, uint32_t first, uint32_t count,
                              uint32_t epoch) {
    for (uint32_t i = first; i < first + count; ++i) {
      EXPERTPLEX_CHECK(outputs[i] == epoch, "a tile runs before what it depends on");
    }
  }

  Server& server_;
  TileScheduler<Mem> scheduler_;
  PipelineState pipeline_;
  uint32_t member_;
  Team& team_;
  HandoffRing<kDepth>* rings_[1];
  HandoffSender<Mem, kDepth> sender_;
  HandoffReceiver<Mem, kDepth> receiver_;
  Random random_;
};

// Sends operations of random raggedness, one after the other; returns the tiles that they have.
uint64_t run_sender(Server& server, Phase phase, uint32_t s) {
  Slot& slot = server.slots[phase_index(phase)][s];
  Random random(phase_index(phase) * 10 + s);
  uint64_t expected = 0;
  for (uint32_t epoch = 1; epoch <= server.setup.operations; ++epoch) {
    uint32_t blocks = 0;
    for (uint32_t& rows : slot.rows) {
      rows = random.chance(0.4) ? 0 : static_cast<uint32_t>(random.below(9));
      blocks += ceil_div(rows, slot.shape.gate_up.rows);
    }
    slot.tokens = random.chance(0.2) ? 0 : static_cast<uint32_t>(random.below(kMaxTokens + 1));
    expected += uint64_t{blocks} * (slot.shape.gate_up_columns() + slot.shape.down_columns());
    if (slot.shape.reduce_tokens > 0) expected += ceil_div(slot.tokens, slot.shape.reduce_tokens);
    slot.ready_word.store(epoch, std::memory_order_release);
    for (uint64_t look = 0; slot.done_word.load(std::memory_order_acquire) != epoch; ++look) {
      EXPERTPLEX_CHECK(look < kMaxLooks, "no done word for {} {} epoch {}", phase_name(phase), s,
                       epoch);
      std::this_thread::yield();
    }
  }
  return expected;
}

void set_up(Server& server) {
  SchedulerLimits& limits = server.limits;
  limits.clusters = kClusters;
  limits.slots[0] = limits.slots[1] = kSendersPerPhase;
  limits.experts = kExperts;
  limits.row_blocks[0] = limits.row_blocks[1] = kRowBlocks;
  server.storage = std::aligned_alloc(kStorageAlignment, storage_bytes(limits));
  initialise_storage(limits, server.storage);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t s = 0; s < kSendersPerPhase; ++s) {
      Slot& slot = server.slots[phase_index(phase)][s];
      OperationTemplate& shape = slot.shape;
      shape.phase = phase;
      if (phase == Phase::kDecode && server.setup.resident)
        shape.pipeline = PipelineRole::kResident;
      shape.slot = static_cast<uint8_t>(s);
      shape.experts = kExperts;
      shape.hidden = 24;
      shape.intermediate = 16;
      shape.gate_up = {2, 8};
      shape.down = {2, 8};
      shape.reduce_tokens = phase == Phase::kPrefill ? 5 : 0;
      shape.row_group = 1 + s;
      shape.down_scan_window = 3;
      shape.commits_per_tile = server.setup.members;
      shape.max_row_blocks = kRowBlocks;
      shape.max_tokens = kMaxTokens;
      EXPERTPLEX_CHECK(install_template(limits, server.storage, shape) == OperationFault::kNone);
      for (auto& outputs : slot.outputs) outputs.assign(kRowBlocks * 3 * server.setup.members, 0);
    }
  }
}

template <typename Mem>
void run_case(const Case& setup) {
  const auto begin = std::chrono::steady_clock::now();
  auto server = std::make_unique<Server>();
  server->setup = setup;
  set_up(*server);
  std::vector<std::thread> workers;
  for (uint32_t c = 0; c < kClusters; ++c) {
    for (uint32_t m = 0; m < setup.members; ++m) {
      for (uint32_t r = 0; r < (setup.resident ? 2u : 1u); ++r) {
        workers.emplace_back(
            [&server, c, m, r] { Worker<Mem>(*server, c, m, static_cast<PipelineRole>(r)).run(); });
      }
    }
  }
  std::vector<std::thread> senders;
  std::atomic<uint64_t> expected{0};
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t s = 0; s < kSendersPerPhase; ++s) {
      senders.emplace_back([&, phase, s] { expected += run_sender(*server, phase, s); });
    }
  }
  for (auto& sender : senders) sender.join();
  TileScheduler<Mem> scheduler(server->limits, server->storage);
  scheduler.abort(1);
  for (auto& worker : workers) worker.join();
  const SchedulerCounters counters = read_counters(scheduler);
  EXPERTPLEX_CHECK(server->tiles.load() == expected.load(), "{} tiles instead of {}",
                   server->tiles.load(), expected.load());
  EXPERTPLEX_CHECK(counters.phase_tiles(Phase::kPrefill) + counters.phase_tiles(Phase::kDecode) ==
                   expected.load());
  EXPERTPLEX_CHECK(counters.queue_depth[0] == 0 && counters.queue_depth[1] == 0);
  std::free(server->storage);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("{:<28} {} tiles, {} switches, {} borrowed, {} parked, {} decisions, {:.1f} s\n",
             setup.name, expected.load(), counters.switches, counters.borrowed,
             counters.preemptions, counters.decisions, seconds.count());
}

int run_all(bool lost_release) {
  Case base;
  base.name = "tile switching";
  base.operations = 600;
  base.policy.budget.decode_sms = 1;
  base.policy.budget.max_decode_sms = 3;
  base.policy.budget.expected_footprint_milli = 4000;
  if (lost_release) {
    run_case<LostRelease>(base);
    return 0;
  }
  run_case<HostMemory>(base);
  Case patient = base;
  patient.name = "no lending while waiting";
  patient.policy.lend_while_waiting = false;
  run_case<HostMemory>(patient);
  Case stubborn = base;
  stubborn.name = "no preemption";
  stubborn.policy.preemption_enabled = false;
  run_case<HostMemory>(stubborn);
  Case pairs = base;
  pairs.name = "clusters of two";
  pairs.members = 2;
  pairs.operations = 200;
  run_case<HostMemory>(pairs);
  Case resident = base;
  resident.name = "two pipelines";
  resident.resident = true;
  resident.policy.mode = SwitchMode::kTwoPipelines;
  resident.operations = 300;
  run_case<HostMemory>(resident);
  Case parking = pairs;
  parking.name = "parking, clusters of two";
  parking.policy.mode = SwitchMode::kParking;
  run_case<HostMemory>(parking);
  return 0;
}

}  // namespace
}  // namespace expertplex::apk

int main(int argc, char** argv) {
  return expertplex::apk::run_all(argc > 1 && std::string_view(argv[1]) == "lost_release");
}
