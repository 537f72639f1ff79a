// The scheduler warp of a CTA in the adaptive persistent kernel: the only one of the CTA that looks
// at shared words of the scheduler. It takes tiles of both pipelines and hands them to producers and
// math warps through queues, so no two roles can disagree. A CTA is a cluster.
//
// A look is one load by five lanes. An announced operation costs one more
// round of loads (counts, binding, an acquire of the ready word), all side by side.
#pragma once

#include "apk/device_memory.h"
#include "apk/scheduler.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/work_queue.h"
#include "cuda/ptx/fences.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class ApkSchedulerWarp {
 public:
  using Memory = apk::DeviceMemory;
  using Shared = SharedLayout<kConfig>;

  __device__ __forceinline__ ApkSchedulerWarp(const ApkParameters& parameters, Shared* shared)
      : p_(parameters),
        layout_(parameters.limits),
        scheduler_(parameters.limits, parameters.scheduler),
        shared_(shared),
        main_queue_(shared),
        urgent_queue_(shared),
        resident_queue_(shared),
        lane_(threadIdx.x % 32) {
    main_.cluster = resident_.cluster = blockIdx.x;
    resident_.role = apk::PipelineRole::kResident;
    const apk::SharedState* state = layout_.shared(p_.scheduler);
    word_ = &layout_.cluster(p_.scheduler, blockIdx.x)->preempt_word;
    if (lane_ == kPrefillWindow) word_ = &state->ready_window[0];
    if (lane_ == kDecodeWindow) word_ = &state->ready_window[1];
    if (lane_ == kMainAnnounced) word_ = &state->announced[0];
    if (lane_ == kResidentAnnounced) word_ = &state->announced[1];
    if (lane_ < p_.limits.slots[1]) {
      const apk::OperationTemplate& shape =
          *layout_.operation_template(p_.scheduler, apk::Phase::kDecode, lane_);
      const uint32_t columns = shape.gate_up_columns();
      own_ = blockIdx.x / columns << 16 | blockIdx.x % columns;
      experts_ = shape.experts;
    }
  }

  // Until an abort; then tells the pipelines.
  __device__ __forceinline__ void run() {
    uint64_t last = ~uint64_t{0};
    uint32_t naps = 0;
    for (;;) {
      const uint64_t seen = load();
      // While the load is under way: its math warps need the issue slots.
      __nanosleep(kNapNanoseconds);
      if (__any_sync(kAll, lane_ < kWords && seen != last)) {
        last = seen;
        naps = 0;
        tell_producers(static_cast<uint32_t>(__shfl_sync(kAll, seen, kDecision)));
        if (decision_.abort) break;
        take_announced<kResidentRows>(resident_, resident_queue_,
                                      __shfl_sync(kAll, seen, kResidentAnnounced));
        take_announced<kMainNarrowRows>(main_, urgent_queue_,
                                        __shfl_sync(kAll, seen, kMainAnnounced));
        prefill_ = __shfl_sync(kAll, seen, kPrefillWindow) != 0;
        const uint64_t decode = __shfl_sync(kAll, seen, kDecodeWindow);
        decode_ = apk::window_has_entry_for(decode, apk::PipelineRole::kMain);
        resident_decode_ = apk::window_has_entry_for(decode, apk::PipelineRole::kResident);
      }
      // Where a claim finds nothing, all is claimed, most of the time for good: rare looks leave
      // the warp free for announcements.
      if (naps > 0) {
        --naps;
      } else if (!claim()) {
        naps = kLooksBetweenClaims;
      }
    }
    leave();
  }

 private:
  static constexpr uint32_t kAll = 0xffffffff;
  enum Lane : uint32_t {
    kDecision,
    kPrefillWindow,
    kDecodeWindow,
    kMainAnnounced,
    kResidentAnnounced,
    kWords
  };
  static constexpr uint32_t kLooksBetweenClaims = 4;
  static constexpr uint32_t kNapNanoseconds = 60;
  static constexpr uint64_t kLeaveLimitNs = 100'000'000;

  __device__ __forceinline__ uint64_t load() const {
    return Memory::load(word_, apk::Relaxed{}, apk::DeviceScope{});
  }

  __device__ __forceinline__ void tell_producers(uint32_t decision) {
    decision_ = apk::unpack_decision(decision);
    if (lane_ != 0) return;
    shared_->control.pause = static_cast<uint32_t>(decision_.pause);
    shared_->control.park = decision_.park;
  }

  // The tile of this cluster's own number, of an operation that the agent has just announced. kRows:
  // rows of a tile.
  template <uint32_t kRows, typename WorkQueue>
  __device__ __forceinline__ void take_announced(apk::PipelineState& pipeline, WorkQueue& queue,
                                                 uint64_t word) {
    apk::Announcement a;
    if (!scheduler_.read_announcement(pipeline, word, &a)) return;
    const uint32_t index = apk_slot_index(p_.limits, apk::Phase::kDecode, a.slot);
    const ApkSlot& box = p_.slots[index];
    const GemmBinding* binding = &p_.bindings[index * p_.layers + a.layer];
    // One round of loads.
    const BindingHead head = load_head(binding);
    if (lane_ == 0) Memory::load(&box.ready.value, apk::Acquire{}, apk::SystemScope{});
    const uint32_t experts = __shfl_sync(kAll, experts_, a.slot);
    const uint32_t own = __shfl_sync(kAll, own_, a.slot);
    const uint64_t count = load_count(a, box, 0, experts);
    if (is_over(pipeline, a, count)) return;
    const uint32_t rows = static_cast<uint32_t>(count);
    apk::TileDescriptor tile;
    if (experts <= 32 && !__any_sync(kAll, rows > kRows)) {
      // A row block for each expert with rows: no sums, no divisions.
      const uint32_t present = __ballot_sync(kAll, rows > 0);
      const bool mine = rows > 0 && __popc(present & ((1u << lane_) - 1)) == own >> 16;
      const uint32_t holder = __ballot_sync(kAll, mine);
      if (holder == 0) return;
      const uint32_t expert = static_cast<uint32_t>(__ffs(static_cast<int>(holder))) - 1;
      tile = apk::announced_tile(a, __popc(present));
      tile.expert = static_cast<uint16_t>(expert);
      tile.row_block = own >> 16;
      tile.row_count = __shfl_sync(kAll, rows, expert);
      tile.column_tile = static_cast<uint16_t>(own);
    } else if (!place(a, box, &tile)) {
      return;
    }
    if (lane_ == 0) {
      ptx::fence_proxy_async();
      if (queue.wait_for_room()) queue.push(binding, head, tile);
      scheduler_.note_announced(pipeline, tile);
    }
    __syncwarp();
  }

  // The counts of experts first .. first + 31, a lane each.
  __device__ __forceinline__ uint64_t load_count(const apk::Announcement& a, const ApkSlot& box,
                                                 uint32_t first, uint32_t experts) const {
    if (first + lane_ >= experts) return uint64_t{a.epoch} << 32;
    return Memory::load(&box.rows_per_expert[first + lane_], apk::Relaxed{}, apk::SystemScope{});
  }

  // Counts of a later operation: the announced one is over, and it had no tile for this cluster. Of
  // an earlier one: they have not come yet, look again.
  __device__ __forceinline__ bool is_over(apk::PipelineState& pipeline, const apk::Announcement& a,
                                          uint64_t count) const {
    const int32_t ahead = static_cast<int32_t>(static_cast<uint32_t>(count >> 32) - a.epoch);
    if (!__any_sync(kAll, ahead != 0)) return false;
    if (!__any_sync(kAll, ahead > 0)) pipeline.announced = 0;
    return true;
  }

  // Finds tile `cluster` among the experts, lanes side by side. False: there is none, or the agent
  // is about to refuse the request.
  __device__ __forceinline__ bool place(const apk::Announcement& a, const ApkSlot& box,
                                        apk::TileDescriptor* tile) const {
    const apk::OperationTemplate& shape =
        *layout_.operation_template(p_.scheduler, apk::Phase::kDecode, a.slot);
    const uint32_t experts = shape.experts, height = shape.gate_up.rows;
    const uint32_t columns = shape.gate_up_columns();
    uint32_t total = 0, expert = 0;
    apk::ExpertRows found;
    bool here = false;
#pragma unroll 1
    for (uint32_t first = 0; first < experts; first += 32) {
      const uint64_t count = load_count(a, box, first, experts);
      if (__any_sync(kAll, static_cast<uint32_t>(count >> 32) != a.epoch)) return false;
      const uint32_t rows = static_cast<uint32_t>(count);
      const uint32_t blocks = apk::ceil_div(rows, height);
      uint32_t end = blocks;
#pragma unroll 1
      for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(kAll, end, step);
        if (lane_ >= step) end += before;
      }
      const uint32_t first_block = total + end - blocks;
      const bool mine =
          blockIdx.x >= first_block * columns && blockIdx.x < (first_block + blocks) * columns;
      const uint32_t holder = __ballot_sync(kAll, mine);
      if (holder != 0) {
        const uint32_t from = static_cast<uint32_t>(__ffs(static_cast<int>(holder))) - 1;
        here = true;
        expert = first + from;
        found = {__shfl_sync(kAll, rows, from), __shfl_sync(kAll, first_block, from)};
      }
      total += __shfl_sync(kAll, end, 31);
    }
    if (!here || total > shape.max_row_blocks) return false;
    *tile = apk::announced_tile(a, total);
    apk::place_in_expert(shape, expert, found, blockIdx.x, tile);
    return true;
  }

  // One claim for each pipeline with room. False: there was nothing to be had.
  __device__ __forceinline__ bool claim() {
    uint32_t found = 0;
    if (lane_ == 0) {
      if (resident_decode_ && resident_queue_.has_room()) {
        const apk::Claim claim = scheduler_.next(resident_, decision_, {});
        if (claim.status == apk::ClaimStatus::kTile) {
          push(resident_queue_, claim.tile);
          found = 1;
        }
      }
      const apk::TileScheduler<Memory>::Room room{prefill_ && main_queue_.has_room(),
                                                  decode_ && urgent_queue_.has_room()};
      if (room.prefill || room.decode) {
        const apk::Claim claim = scheduler_.next(main_, decision_, room);
        if (claim.status == apk::ClaimStatus::kTile) {
          if (claim.tile.phase == apk::Phase::kPrefill) {
            push(main_queue_, claim.tile);
          } else {
            push(urgent_queue_, claim.tile);
          }
          found = 1;
        }
      }
    }
    return __any_sync(kAll, found);
  }

  template <typename WorkQueue>
  __device__ __forceinline__ void push(WorkQueue& queue, const apk::TileDescriptor& tile) {
    // The claim acquired what the ready word released, in the generic proxy; TMA reads it next.
    ptx::fence_proxy_async();
    const uint32_t slot = apk_slot_index(p_.limits, tile.phase, tile.slot);
    const GemmBinding* binding = &p_.bindings[slot * p_.layers + tile.layer];
    queue.push(binding, load_head(binding), tile);
  }

  __device__ __forceinline__ void leave() {
    if (lane_ != 0) return;
    // A producer that a pause holds back in mid-tile would never come to the end of its work.
    shared_->control.pause = static_cast<uint32_t>(apk::PausePolicy::kNever);
    const uint64_t start = ptx::global_time_ns();
    while (!main_queue_.has_room() || !resident_queue_.has_room()) {
      if (ptx::global_time_ns() - start > kLeaveLimitNs) {
        shared_->control.abort = 1;
        return;
      }
    }
    main_queue_.push_end();
    resident_queue_.push_end();
  }

  const ApkParameters& p_;
  const apk::StorageLayout layout_;
  apk::TileScheduler<Memory> scheduler_;
  Shared* shared_;
  WorkQueue<kConfig, Queue::kMain> main_queue_;
  WorkQueue<kConfig, Queue::kUrgent> urgent_queue_;
  WorkQueue<kConfig, Queue::kResident> resident_queue_;
  const uint32_t lane_;
  const uint64_t* word_;  // the word that this lane looks at
  // Of the decode slot of this lane's number: row block and column tile of the GateUp tile of this
  // cluster's number, where every row block is an expert's only one; local experts.
  uint32_t own_ = 0, experts_ = 0;
  apk::PipelineState main_, resident_;
  apk::Decision decision_;
  // What the ready windows hold: prefill, decode of the main and of the resident pipeline.
  bool prefill_ = false, decode_ = false, resident_decode_ = false;
};

}  // namespace expertplex::cuda
