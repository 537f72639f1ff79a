// What lies where in a CTA's shared memory.
//
// Words between warps, all mbarriers of CTA scope (a completed phase releases what was written
// before the arrivals to who waits for it):
//   *_full[s]    arrivals: the producer (1) and its bulk copies' bytes. Waiters: math warps.
//                Stage s and its stamp may be read.
//   *_empty[s]   arrivals: every math warp of the pipeline. Waiter: the producer. Stage s may be
//                loaded again; wgmma has finished reading it.
//   *_work_full[q]   arrivals: the scheduler warp, or the resident producer for owned tiles (1).
//                Waiters: the producer (math warps follow its stamps). work[q] is written.
//   *_work_done[q]   arrivals: every math warp. Waiter: the committer. The tile's output is there.
//   *_work_empty[q]  arrivals: the producer and the committer (1 each). Waiter: who fills the
//                queue. Nobody needs work[q] any more.
#pragma once

#include <cstdint>

#include "cuda/device/apk_state.h"
#include "cuda/device/gemm_config.h"
#include "cuda/device/tile_work.h"
#include "cuda/ptx/shared_memory.h"

namespace expertplex::cuda {

// Written by the producer with each stage; the only thing that tells math warps what a stage is.
struct alignas(16) StageStamp {
  uint32_t flags = 0;         // kStage*, and the work slot in the low bits
  uint32_t scale_offset = 0;  // bytes from the row-scale area to this k tile's scale of row 0
  float weight_scale[2] = {0, 0};
};

__device__ __forceinline__ StageStamp load_stamp(uint32_t address) {
  const uint4 words = ptx::load_shared_words(address);
  return {words.x, words.y, {__uint_as_float(words.z), __uint_as_float(words.w)}};
}

constexpr uint32_t kStageSlotMask = 7;
constexpr uint32_t kStageLast = 8;         // last k tile of its tile
constexpr uint32_t kStageSwapped = 16;     // as kWorkSwapped
constexpr uint32_t kStageSecondWave = 32;  // as kWorkSecondWave
constexpr uint32_t kStageEnd = 64;         // no data: leave
constexpr uint32_t kStageResume = 128;     // first stage of a tile that was put by

// Work slots: each queue of work_queue.h has two, for the tile under way and the next one.
constexpr uint32_t kWorkSlots = 2;
constexpr uint32_t kMainUrgentSlot = kWorkSlots;
constexpr uint32_t kMainOwnedSlot = 2 * kWorkSlots;
constexpr uint32_t kMainWorkSlots = 3 * kWorkSlots;
constexpr uint32_t kResidentOwnedSlot = kWorkSlots;
constexpr uint32_t kResidentWorkSlots = 2 * kWorkSlots;
// What the last stage before an interruption names instead of its tile's slot: a tile of no rows,
// with kWorkParks, and a done barrier that nobody waits for. As a flag of the stage it would be one
// more word of the stamp that ptxas keeps uniform, for which the end of every stage waits (3 %).
constexpr uint32_t kParkSlot = kMainWorkSlots;
static_assert(kParkSlot <= kStageSlotMask);

// Words that steer the producers; each has one writer, and none orders anything. Read one by one
// (MainProducer::load_control).
struct alignas(16) ProducerControl {
  // apk::PausePolicy of prefill loads while the resident producer has tiles. Writer: the scheduler
  // warp; reader: the main producer.
  uint32_t pause = 0;
  // 1: the resident producer has tiles. Writer: it; reader: the main producer.
  uint32_t resident_loads = 0;
  // 1: an urgent tile interrupts a prefill tile; 0: it waits for its end. Writer: the scheduler
  // warp; reader: the main producer.
  uint32_t park = 0;
  // Not 0: leave every wait. Writer: the scheduler warp, when an abort does not come to an end by
  // itself; readers: all roles.
  uint32_t abort = 0;
};

// How many claimed tiles each queue may have had since the start: its producer wants the next one
// when the tile under way has begun (main) or a quarter of it is loaded (resident), not before. A
// cluster that claims further ahead takes tiles that others could begin sooner (a third tile of a
// decode operation while others had one: 120 instead of 95 us). Writers: the producers; reader: the
// scheduler warp; none orders anything.
struct alignas(16) WantedTiles {
  uint32_t main = 0;
  uint32_t urgent = 1;  // one ahead of those begun: it may not wait for a part of a prefill tile
  uint32_t resident = 0;
};
// How many of them the producers have begun; each its own's. Not in their registers.
struct BegunTiles {
  uint32_t main = 0, urgent = 0, resident = 0;
};

// What the inbox (apk_inbox.h) keeps of a decode slot. Only the resident producer uses it.
struct alignas(16) InboxEntry {
  uint64_t taken = 0;  // the ready word that was last dealt with
  // The GateUp tile of this cluster's number, where every row block is an expert's only one.
  uint16_t row_block = 0, column_tile = 0;
  uint16_t experts = 0;          // local ones; 0: the slot is not announced
  uint16_t resident = 0;         // 1: the resident pipeline's
  uint16_t next_slot = 0;        // where the next operation came the last time
  uint16_t head_layer = 0xFFFF;  // of `head`, on its way or there
  BindingHead head;
};

constexpr uint32_t kCtaWarps = 16;

template <GemmConfig kConfig>
struct SharedLayout {
  static constexpr uint32_t kMainStages = kConfig.main_stages;
  static constexpr uint32_t kResidentStages = kConfig.resident_stages;
  static constexpr uint32_t kResidentSlots = kResidentStages == 0 ? 1 : kResidentStages;
  // Groups of row scales in flight. A slot is loaded again when the ring has come round at least
  // once since its group's last use, if every group has two k tiles or more (check_gemm_shape).
  static constexpr uint32_t kScaleSlots = kMainStages - 1;

  alignas(1024) uint8_t main_wide[kMainStages][kMainWideRows * kTileK];
  alignas(1024) uint8_t main_narrow[kMainStages][kMainNarrowRows * kTileK];
  alignas(1024) uint8_t
      resident_weights[kResidentSlots][kResidentStages == 0 ? 1 : kResidentWeightRows * kTileK];
  alignas(1024) uint8_t
      resident_rows[kResidentSlots][kResidentStages == 0 ? 1 : kResidentRows * kTileK];
  // [slot][row][k tile of the group]
  alignas(128) float main_row_scales[kScaleSlots][kMainWideRows][kScaleGroup];
  alignas(128) float resident_row_scales[kResidentSlots][kResidentRows][kScaleGroup];
  StageStamp main_stamp[kMainStages];
  StageStamp resident_stamp[kResidentSlots];
  TileWork main_work[kMainWorkSlots + 1];
  TileWork resident_work[kResidentWorkSlots];
  alignas(8) uint64_t main_full[kMainStages], main_empty[kMainStages];
  uint64_t resident_full[kResidentSlots], resident_empty[kResidentSlots];
  uint64_t main_work_full[kMainWorkSlots], main_work_done[kMainWorkSlots + 1];
  uint64_t main_work_empty[kMainWorkSlots];
  uint64_t resident_work_full[kResidentWorkSlots], resident_work_done[kResidentWorkSlots];
  uint64_t resident_work_empty[kResidentWorkSlots];
  ProducerControl control;
  WantedTiles wanted;
  BegunTiles begun;
  InboxEntry inbox[kApkInboxSlots];
  // Ready words as the last glance saw them, each with the 8 bytes behind it. Writer: asynchronous
  // copies of the resident producer, which arrive on inbox_seen_full (one arrival a lane); reader:
  // it.
  alignas(16) uint64_t inbox_seen[kApkInboxSlots][2];
  uint64_t inbox_seen_full[1];
  // What each warp waited for when the abort word made it leave: the barrier's address, the parity
  // in the highest bit; 0: it left at its end. Writer: that warp; reader: thread 0 at the end.
  uint32_t left_waiting[kCtaWarps];
};

// Shared-window address of a kernel's dynamic shared memory where it has no static one: the first
// kilobyte is the system's. As a constant it makes every address and operand descriptor of the math
// an immediate; the kernel checks it before anything else.
constexpr uint32_t kSharedBase = 1024;

constexpr uint32_t kSharedLimit = 232448;  // bytes a CTA can have on sm_90

}  // namespace expertplex::cuda
