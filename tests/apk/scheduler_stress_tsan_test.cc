// Worker threads as CTA clusters, several senders, random operations of both phases, under the
// thread sanitizer: every tile exactly once, dependencies respected, every operation finishes once.
// Tile outputs, operation fields and the agent's data are plain memory, so a lost release or
// acquire is a report of the sanitizer. Own main: gtest is not built with the sanitizer.
//
// With the argument `lost_release` the claim and window words are published relaxed: the canary,
// which must end in a report.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "apk/counters.h"
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

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kSendersPerPhase = 2;
constexpr uint32_t kExperts = 5;
constexpr uint32_t kRowBlocks = 24;
constexpr uint32_t kMaxTokens = 24;

// One slot: its sender's mailbox and what the tiles compute. The mailbox is published with the
// ready word and everything else with done word, claims and commits.
struct Slot {
  OperationTemplate shape;
  uint32_t rows[kExperts] = {};
  uint32_t tokens = 0;
  std::atomic<uint32_t> ready_word{0};
  std::atomic<uint32_t> done_word{0};
  uint32_t submitted = 0;                       // the agent's
  std::vector<uint32_t> gate_up, down, reduce;  // epoch in which the tile was computed
};

struct Server {
  SchedulerLimits limits;
  void* storage = nullptr;
  Slot slots[kPhaseCount][kSendersPerPhase];
  SharingPolicy policy;
  std::atomic<bool> stop{false};
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
  agent.decide(server.policy);
}

// Marks a tile as computed in this epoch, exactly once.
void compute_output(std::vector<uint32_t>& outputs, uint32_t index, uint32_t epoch) {
  EXPERTPLEX_CHECK(outputs[index] < epoch, "tile {} computed twice in epoch {}", index, epoch);
  outputs[index] = epoch;
}

void compute(Slot& slot, const TileDescriptor& tile, const OperationFields& fields) {
  const uint32_t gate_up_columns = slot.shape.gate_up_columns();
  const uint32_t down_columns = slot.shape.down_columns();
  switch (tile.kind) {
    case TileKind::kGateUp:
      compute_output(slot.gate_up, tile.row_block * gate_up_columns + tile.column_tile, tile.epoch);
      return;
    case TileKind::kDown:
      for (uint32_t c = 0; c < gate_up_columns; ++c) {
        EXPERTPLEX_CHECK(slot.gate_up[tile.row_block * gate_up_columns + c] == tile.epoch,
                         "Down before its GateUp");
      }
      compute_output(slot.down, tile.row_block * down_columns + tile.column_tile, tile.epoch);
      return;
    case TileKind::kReduce:
      break;
  }
  for (uint32_t i = 0; i < fields.down_tiles; ++i) {
    EXPERTPLEX_CHECK(slot.down[i] == tile.epoch, "Reduce before Down");
  }
  compute_output(slot.reduce, tile.row_block, tile.epoch);
}

template <typename Mem>
void run_worker(Server& server, uint32_t cluster) {
  TileScheduler<Mem> scheduler(server.limits, server.storage);
  PipelineState pipeline;
  pipeline.cluster = cluster;
  Random random(1000 + cluster);
  while (true) {
    if (auto agent = scheduler.try_become_agent()) run_agent_round(server, agent);
    const Claim claim = scheduler.next(pipeline);
    if (claim.status == ClaimStatus::kAbort) return;
    if (claim.status == ClaimStatus::kNothing) {
      std::this_thread::yield();
      continue;
    }
    const TileDescriptor tile = claim.tile;
    Slot& slot = server.slots[phase_index(tile.phase)][tile.slot];
    const OperationFields fields = scheduler.operation(tile);
    EXPERTPLEX_CHECK(fields.epoch == tile.epoch);
    compute(slot, tile, fields);
    if (random.chance(0.05)) std::this_thread::yield();
    server.tiles.fetch_add(1, std::memory_order_relaxed);
    if (!scheduler.commit(tile)) continue;
    scheduler.retire(tile);
    slot.done_word.store(tile.epoch, std::memory_order_release);
  }
}

// Sends operations of random raggedness, one after the other; returns the tiles that they have.
uint64_t run_sender(Server& server, Phase phase, uint32_t s, uint32_t operations) {
  Slot& slot = server.slots[phase_index(phase)][s];
  Random random(phase_index(phase) * 10 + s);
  uint64_t expected = 0;
  for (uint32_t epoch = 1; epoch <= operations; ++epoch) {
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
      EXPERTPLEX_CHECK(look < 100'000'000, "no done word for {} {} epoch {}", phase_name(phase), s,
                       epoch);
      std::this_thread::yield();
    }
  }
  return expected;
}

template <typename Mem>
void run_case(const char* name, const SharingPolicy& policy, uint32_t operations) {
  const auto begin = std::chrono::steady_clock::now();
  auto server = std::make_unique<Server>();
  server->policy = policy;
  SchedulerLimits& limits = server->limits;
  limits.clusters = kWorkers;
  limits.slots[0] = limits.slots[1] = kSendersPerPhase;
  limits.experts = kExperts;
  limits.row_blocks[0] = limits.row_blocks[1] = kRowBlocks;
  server->storage = std::aligned_alloc(kStorageAlignment, storage_bytes(limits));
  initialise_storage(limits, server->storage);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t s = 0; s < kSendersPerPhase; ++s) {
      Slot& slot = server->slots[phase_index(phase)][s];
      OperationTemplate& shape = slot.shape;
      shape.phase = phase;
      shape.slot = static_cast<uint8_t>(s);
      shape.experts = kExperts;
      shape.hidden = 24;
      shape.intermediate = 16;
      shape.gate_up = {2, 8};
      shape.down = {2, 8};
      shape.reduce_tokens = phase == Phase::kPrefill ? 5 : 0;
      shape.row_group = 1 + s;
      shape.down_scan_window = 3;
      shape.max_row_blocks = kRowBlocks;
      shape.max_tokens = kMaxTokens;
      EXPERTPLEX_CHECK(install_template(limits, server->storage, shape) == OperationFault::kNone);
      slot.gate_up.assign(kRowBlocks * shape.gate_up_columns(), 0);
      slot.down.assign(kRowBlocks * shape.down_columns(), 0);
      slot.reduce.assign(kMaxTokens, 0);
    }
  }
  std::vector<std::thread> workers;
  for (uint32_t c = 0; c < kWorkers; ++c) {
    workers.emplace_back(run_worker<Mem>, std::ref(*server), c);
  }
  std::vector<std::thread> senders;
  std::atomic<uint64_t> expected{0};
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t s = 0; s < kSendersPerPhase; ++s) {
      senders.emplace_back(
          [&, phase, s] { expected += run_sender(*server, phase, s, operations); });
    }
  }
  for (auto& sender : senders) sender.join();
  TileScheduler<Mem> scheduler(limits, server->storage);
  scheduler.abort(1);
  for (auto& worker : workers) worker.join();
  const SchedulerCounters counters = read_counters(scheduler);
  EXPERTPLEX_CHECK(server->tiles.load() == expected.load(), "{} tiles instead of {}",
                   server->tiles.load(), expected.load());
  EXPERTPLEX_CHECK(counters.phase_tiles(Phase::kPrefill) + counters.phase_tiles(Phase::kDecode) ==
                   expected.load());
  EXPERTPLEX_CHECK(counters.queue_depth[0] == 0 && counters.queue_depth[1] == 0);
  std::free(server->storage);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-28s %llu tiles, %llu switches, %llu borrowed, %llu decisions, %.1f s\n", name,
              static_cast<unsigned long long>(expected.load()),
              static_cast<unsigned long long>(counters.switches),
              static_cast<unsigned long long>(counters.borrowed),
              static_cast<unsigned long long>(counters.decisions), seconds);
}

}  // namespace
}  // namespace expertplex::apk

int main(int argc, char** argv) {
  using namespace expertplex::apk;
  constexpr uint32_t kOperations = 3000;
  SharingPolicy policy;
  policy.budget.decode_sms = 1;
  policy.budget.max_decode_sms = 3;
  policy.budget.expected_footprint_milli = 4000;
  if (argc > 1 && std::string_view(argv[1]) == "lost_release") {
    run_case<LostRelease>("lost release", policy, kOperations);
    return 0;
  }
  run_case<HostMemory>("tile switching", policy, kOperations);
  policy.lend_while_waiting = false;
  run_case<HostMemory>("no lending while waiting", policy, kOperations);
  policy.preemption_enabled = false;
  run_case<HostMemory>("no preemption", policy, kOperations);
  return 0;
}
