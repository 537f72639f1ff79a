// The words of an MoE server's window, from the server's side: which operations have become ready,
// whether what arrived is sound, and the done words.
//
// A channel (group and microbatch, transport/moe_buffers.h) has one operation at a time. Its cursor
// is {iteration epoch, next layer}: a new iteration word starts it anew and gives up what had not
// become ready of the one before; an operation in flight is finished first.
//
// Anything that contradicts the protocol (an epoch that goes back, a count beyond the capacity,
// rows that do not add up) is a fault: the operation is refused, nothing is computed from it, and
// the server aborts with the reason.
//
// Thread rules: poll() by the holder of the deciding-agent role; finish() by the worker whose
// commit finished the operation; statistics from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apk/deciding_agent.h"
#include "apk/host_memory.h"
#include "apk/tile.h"
#include "backend/moe_executor.h"
#include "base/result.h"
#include "cpu/moe/moe_compute.h"
#include "cpu/moe/moe_plan.h"
#include "transport/window.h"

namespace expertplex::cpu {

class MoeInbox {
 public:
  using Agent = apk::AgentRole<apk::HostMemory>;

  MoeInbox(const MoePlan& plan, std::string server_name, Nanoseconds wait_limit,
           std::shared_ptr<transport::Window> window, MoeCompute& compute);

  // Looks at all channels once and submits what is ready. True: something was submitted or done.
  // kInternal is a fault.
  Result<bool> poll(Agent& agent);

  // The operation of `tile` is finished and its slot retired: publishes the done word.
  void finish(const apk::TileDescriptor& tile, uint32_t row_blocks);

  uint64_t open_operations() const { return open_.load(std::memory_order_acquire); }
  uint64_t open_operations(apk::Phase phase) const {
    return open_by_phase_[apk::phase_index(phase)].load(std::memory_order_relaxed);
  }
  // Fills what it knows: operations, x_moe, time-outs.
  void add_statistics(MoeStatistics* statistics) const;

 private:
  struct Channel {
    int index = 0;  // of the window's words
    apk::Phase phase = apk::Phase::kDecode;
    uint32_t slot = 0;
    int microbatch = 0, sender = 0;
    // Cursor; belongs to the holder of the agent role.
    bool begun = false;
    uint32_t epoch = 0;  // of the iteration
    uint32_t mask = 0;
    int next_layer = 0;
    uint32_t sequence = 0;             // epoch of the scheduler's operations: never 0
    Nanoseconds incomplete_since = 0;  // some participants have come, others not; 0: no
    bool reported = false;
    // What is in flight: written by the agent before submit, read by the finisher.
    transport::WordValue done;
    // 1 from submit to the done word. Set by the agent, cleared with release by the finisher after
    // the done word; the agent acquires it: the channel's done words keep their order.
    std::atomic<uint32_t> busy{0};
  };

  Result<bool> poll_channel(Channel& channel, Agent& agent);
  Result<bool> submit(Channel& channel, uint32_t count, Agent& agent);
  // Takes over the iteration word. False: nothing is to be done on the channel.
  Result<bool> follow_iteration(Channel& channel);
  // The participants' counts added up, once all have come.
  Result<std::optional<uint32_t>> arrived(Channel& channel);
  void note_incomplete(Channel& channel, int missing);
  // Rows per expert into rows_, checked. False: the iteration was given up meanwhile.
  Result<bool> read_decode_rows(const Channel& channel, uint32_t count);
  Result<void> read_prefill_rows(const Channel& channel, uint32_t tokens);
  transport::WordValue iteration_word(const Channel& channel) const;
  void publish_done(Channel& channel);
  Error fault(const Channel& channel, const std::string& what) const;

  const MoePlan plan_;
  const std::string name_;
  const Nanoseconds wait_limit_;
  std::shared_ptr<transport::Window> window_;
  MoeCompute& compute_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<Channel*> by_slot_[apk::kPhaseCount];
  std::vector<uint32_t> rows_;  // [local experts], agent's

  std::atomic<uint64_t> open_{0};
  std::atomic<uint64_t> open_by_phase_[apk::kPhaseCount] = {};
  std::atomic<uint64_t> finished_[apk::kPhaseCount] = {};
  std::atomic<uint64_t> decode_row_blocks_{0};
  std::atomic<uint64_t> waits_timed_out_{0};
};

}  // namespace expertplex::cpu
