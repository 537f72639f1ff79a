// The scheduler's memory: one caller-provided region, laid out from the limits alone, so that the
// host can size, place and initialise what a kernel then works on. No pointers are stored in it:
// the same bytes may be mapped at different addresses on host and device.
//
// Thread rules: initialise_storage before any thread runs; afterwards only through TileScheduler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "apk/operation_slot.h"
#include "apk/phase.h"
#include "base/host_device.h"

namespace expertplex::apk {

constexpr uint32_t kMaxSlotsPerPhase = 64;
constexpr uint32_t kMaxClusters = 1023;
// Operations of one phase that claimers see at once, in FIFO order; further ones wait.
constexpr uint32_t kReadyWindow = 8;
constexpr size_t kStorageAlignment = 128;

// A byte of a ready window: slot + 1, and whether the resident pipeline computes it, so that a
// pipeline passes over the other's operations without touching them. 0: none.
constexpr uint8_t kResidentEntry = 0x80;
static_assert(kMaxSlotsPerPhase < kResidentEntry);

EXPERTPLEX_HOST_DEVICE constexpr uint8_t pack_window_entry(uint32_t slot, PipelineRole role) {
  return static_cast<uint8_t>((slot + 1) | (role == PipelineRole::kResident ? kResidentEntry : 0));
}
EXPERTPLEX_HOST_DEVICE constexpr uint32_t window_entry_slot(uint64_t window) {
  return static_cast<uint32_t>(window & (kResidentEntry - 1u)) - 1;
}
EXPERTPLEX_HOST_DEVICE constexpr PipelineRole window_entry_role(uint64_t window) {
  return window & kResidentEntry ? PipelineRole::kResident : PipelineRole::kMain;
}

struct SchedulerLimits {
  uint32_t clusters = 0;                      // CTA clusters, or worker threads
  uint32_t slots[kPhaseCount] = {0, 0};       // operation slots, by phase_index
  uint32_t experts = 0;                       // largest OperationTemplate::experts
  uint32_t row_blocks[kPhaseCount] = {0, 0};  // largest OperationTemplate::max_row_blocks
};

EXPERTPLEX_HOST_DEVICE constexpr bool valid_limits(const SchedulerLimits& limits) {
  if (limits.clusters == 0 || limits.clusters > kMaxClusters || limits.experts == 0) return false;
  for (uint32_t p = 0; p < kPhaseCount; ++p) {
    if (limits.slots[p] > kMaxSlotsPerPhase) return false;
    if (limits.slots[p] > 0 && limits.row_blocks[p] == 0) return false;
  }
  return limits.slots[0] + limits.slots[1] > 0;
}

// Statistics of one cluster; written by its leaders, read by anyone, relaxed.
struct ClusterCounters {
  uint64_t tiles[kPhaseCount][kTileKindCount] = {};
  uint64_t borrowed = 0;     // tiles taken for the other phase, because the own had none
  uint64_t switches = 0;     // tiles of another phase than the pipeline's tile before
  uint64_t preemptions = 0;  // prefill tiles parked at a k-block check
};

// One per cluster, on lines of its own.
struct alignas(128) ClusterState {
  uint64_t preempt_word = 0;  // preempt_word.h
  ClusterCounters counters;
};

EXPERTPLEX_HOST_DEVICE constexpr bool window_has_entry_for(uint64_t window, PipelineRole role) {
  constexpr uint64_t kResident = 0x8080808080808080u;
  constexpr uint64_t kLowBits = 0x7F7F7F7F7F7F7F7Fu;
  // An entry's high bit after the addition: it holds a slot.
  const uint64_t used = ((window & kLowBits) + kLowBits) & kResident;
  return (role == PipelineRole::kResident ? window & kResident : used & ~window) != 0;
}

// Plain data of the deciding agent: passes from holder to holder with the agent word.
struct AgentPrivate {
  uint8_t waiting[kPhaseCount][kMaxSlotsPerPhase] = {};  // entries behind the ready window, FIFO
  uint32_t waiting_count[kPhaseCount] = {};
  uint64_t ready_window[kPhaseCount] = {};                  // what was last published
  uint32_t submitted[kPhaseCount][kMaxSlotsPerPhase] = {};  // epoch of the slot's latest operation
  uint64_t written_plan[2] = {};                            // what the preempt words now say
  uint32_t plan_written = 0;                                // 0 before the first decision
};

struct alignas(128) SharedState {
  // Who is the deciding agent: 0 nobody, 1 somebody. Taken with compare-exchange acquire, given
  // back with store release, device scope, by whoever wants to decide and finds it free; never
  // waited for. What becomes visible: AgentPrivate.
  uint32_t agent_word = 0;
  // 0, or a reason to leave. Writer: anyone, relaxed, system scope; reader: the agent, relaxed,
  // which passes it on in every preempt word. Orders nothing.
  uint32_t abort_word = 0;
  // Up to 8 slots in flight per phase, oldest in the low byte, each a window entry; 0 ends the
  // list. Writer: the agent, release, device scope, after it has opened the claim words of these
  // operations; reader: pipeline leaders, relaxed: an entry says where a look may pay.
  alignas(128) uint64_t ready_window[kPhaseCount] = {};
  alignas(128) AgentPrivate agent;
  // Statistics, relaxed.
  uint64_t submitted[kPhaseCount] = {};
  uint64_t retired[kPhaseCount] = {};
  uint64_t decisions = 0;  // decisions that changed a preempt word
};

// Where everything lies: shared state, clusters, prefill slots, decode slots; in a slot, its head
// and then its arrays. Computed from the limits each time, so that a kernel keeps no table in
// registers.
class StorageLayout {
 public:
  EXPERTPLEX_HOST_DEVICE constexpr explicit StorageLayout(const SchedulerLimits& limits)
      : limits_(limits) {}

  EXPERTPLEX_HOST_DEVICE constexpr size_t bytes() const {
    return slot_offset(Phase::kDecode, limits_.slots[1]);
  }
  EXPERTPLEX_HOST_DEVICE SharedState* shared(void* base) const {
    return static_cast<SharedState*>(base);
  }
  EXPERTPLEX_HOST_DEVICE ClusterState* cluster(void* base, uint32_t index) const {
    return at<ClusterState>(base, kClusters) + index;
  }
  EXPERTPLEX_HOST_DEVICE OperationTemplate* operation_template(void* base, Phase phase,
                                                               uint32_t slot) const {
    return &at<SlotHead>(base, slot_offset(phase, slot))->shape;
  }
  EXPERTPLEX_HOST_DEVICE SlotView slot(void* base, Phase phase, uint32_t slot) const {
    const uint32_t blocks = row_blocks(phase);
    size_t offset = slot_offset(phase, slot);
    SlotHead* head = at<SlotHead>(base, offset);
    SlotView view;
    view.shape = &head->shape;
    view.fields = &head->fields;
    view.words = &head->words;
    offset += kSlotHeadBytes;
    view.down_claim = at<uint64_t>(base, offset);
    offset += aligned(sizeof(uint64_t) * blocks);
    view.gate_up_committed = at<uint32_t>(base, offset);
    offset += aligned(sizeof(uint32_t) * blocks);
    view.blocks = at<RowBlock>(base, offset);
    return view;
  }

 private:
  struct SlotHead {
    OperationTemplate shape;
    alignas(64) OperationFields fields;
    OperationWords words;
  };

  EXPERTPLEX_HOST_DEVICE static constexpr size_t aligned(size_t size) {
    return (size + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
  }
  static constexpr size_t kClusters =
      (sizeof(SharedState) + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
  static constexpr size_t kSlotHeadBytes =
      (sizeof(SlotHead) + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;

  // No array is indexed by a phase: that would put it into local memory on the GPU.
  EXPERTPLEX_HOST_DEVICE constexpr uint32_t row_blocks(Phase phase) const {
    return phase == Phase::kPrefill ? limits_.row_blocks[0] : limits_.row_blocks[1];
  }
  EXPERTPLEX_HOST_DEVICE constexpr size_t slot_bytes(Phase phase) const {
    const size_t blocks = row_blocks(phase);
    return kSlotHeadBytes + aligned(sizeof(uint64_t) * blocks) +
           aligned(sizeof(uint32_t) * blocks) + aligned(sizeof(RowBlock) * blocks);
  }
  EXPERTPLEX_HOST_DEVICE constexpr size_t slot_offset(Phase phase, uint32_t slot) const {
    size_t offset = kClusters + sizeof(ClusterState) * limits_.clusters;
    if (phase == Phase::kDecode) offset += slot_bytes(Phase::kPrefill) * limits_.slots[0];
    return offset + slot_bytes(phase) * slot;
  }
  template <typename T>
  EXPERTPLEX_HOST_DEVICE static T* at(void* base, size_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
  }

  SchedulerLimits limits_;
};

// Bytes that the storage needs, aligned to kStorageAlignment.
EXPERTPLEX_HOST_DEVICE constexpr size_t storage_bytes(const SchedulerLimits& limits) {
  return StorageLayout(limits).bytes();
}

// Makes `base` an idle scheduler without templates. All words start at zero.
// REQUIRES: valid_limits(limits); base aligned; no thread uses it.
EXPERTPLEX_HOST_DEVICE inline void initialise_storage(const SchedulerLimits& limits, void* base) {
  uint64_t* words = static_cast<uint64_t*>(base);
  const size_t count = storage_bytes(limits) / sizeof(uint64_t);
  for (size_t i = 0; i < count; ++i) words[i] = 0;
}

// Installs the template of its (phase, slot). REQUIRES: initialise_storage was called; no thread
// uses the storage.
EXPERTPLEX_HOST_DEVICE inline OperationFault install_template(const SchedulerLimits& limits,
                                                              void* base,
                                                              const OperationTemplate& shape) {
  const uint32_t p = phase_index(shape.phase);
  if (p >= kPhaseCount || shape.slot >= limits.slots[p]) return OperationFault::kNoSuchSlot;
  const OperationFault fault = check_template(shape);
  if (fault != OperationFault::kNone) return fault;
  if (shape.experts > limits.experts) return OperationFault::kTooManyExperts;
  if (shape.max_row_blocks > limits.row_blocks[p]) return OperationFault::kTooManyRowBlocks;
  *StorageLayout(limits).operation_template(base, shape.phase, shape.slot) = shape;
  return OperationFault::kNone;
}

}  // namespace expertplex::apk
