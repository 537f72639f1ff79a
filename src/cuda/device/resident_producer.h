// The resident decode pipeline's producer: one warp, as main_producer.h, for 128 weight rows and 16
// token rows a stage. It has an inbox beside the scheduler warp's queue: tiles that the cluster
// owns.
#pragma once

#include "cuda/device/lane_scales.h"
#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig, typename Trace, typename Inbox>
class ResidentProducer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ ResidentProducer(Shared* shared, const Trace& trace,
                                              const Inbox& inbox)
      : shared_(shared), trace_(trace), inbox_(inbox) {}

  // Until kWorkEnd or an abort.
  __device__ __forceinline__ void run() {
    for (;;) {
      if (inbox_.has_news()) inbox_.look();
      if (next_ == kNone && !find_next()) {
        if (!wait_for_work()) return;
        continue;
      }
      const uint32_t slot = next_;
      next_ = kNone;
      const TileWork& work = shared_->resident_work[slot];
      if (work.flags & kWorkEnd) {
        end(slot);
        return;
      }
      set_loading(1);
      if (!load(work, slot)) return;
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_work_empty[slot]));
      }
      __syncwarp();
    }
  }

 private:
  static constexpr uint32_t kStages = kConfig.resident_stages;
  static constexpr uint32_t kLookAhead = 2 * kStages;
  static constexpr uint32_t kNapNanoseconds = 100;
  static constexpr uint32_t kNone = ~0u;

  // Until there may be some. False: leave.
  __device__ __forceinline__ bool wait_for_work() {
    set_loading(0);
    want(&shared_->wanted.resident, &shared_->begun.resident);
    const uint32_t full = ptx::shared_address(&shared_->resident_work_full[queue_.stage]);
    if constexpr (!Inbox::kUsed) return warp_wait<Shared>(full, queue_.parity);
    inbox_.look();
    // Its math warps need the issue slots.
    __nanosleep(kNapNanoseconds);
    return !__any_sync(0xffffffff, aborted<Shared>(full, queue_.parity));
  }

  // Takes the next tile if there is one, an owned one first, and sends for its first weight scales:
  // a tile that has to wait for them when its stages are free loses a microsecond.
  __device__ __forceinline__ bool find_next() {
    if (!(Inbox::kUsed && take_from(kResidentOwnedSlot, owned_))) {
      if (!take_from(0, queue_)) return false;
      begin(&shared_->begun.resident);
    }
    const TileWork& work = shared_->resident_work[next_];
    if ((work.flags & kWorkEnd) == 0) scales_.fetch(work.weight_scales, work.k_tiles, 0);
    return true;
  }
  __device__ __forceinline__ bool take_from(uint32_t first, RingPosition<kWorkSlots>& position) {
    const uint32_t slot = first + position.stage;
    const uint32_t full = ptx::shared_address(&shared_->resident_work_full[slot]);
    if (!agree(ptx::mbarrier_test_wait(full, position.parity))) return false;
    next_ = slot;
    position.advance();
    return true;
  }

  __device__ __forceinline__ void set_loading(uint32_t value) {
    if (loading_ == value) return;
    loading_ = value;
    if (ptx::elect_one()) {
      ptx::store_shared_word(ptx::shared_address(&shared_->control.resident_loads), value);
    }
    __syncwarp();
  }
  __device__ __forceinline__ uint32_t empty_barrier() const {
    return ptx::shared_address(&shared_->resident_empty[position_.stage]);
  }

  // What a stage's loads need, in registers: between a free stage and its loads nothing may wait.
  struct From {
    const GemmBinding* binding;
    uint32_t first_row, first_weight_row;
  };

  // Loads go out as far as stages are free, then their stamps: in a ring that is all empty four
  // loads are on their way before the first weight scale has come.
  __device__ __forceinline__ bool load(const TileWork& work, uint32_t slot) {
    const uint32_t k_tiles = work.k_tiles;
    const From from{work.binding, work.first_row, work.first_weight_row};
    uint32_t loaded = 0;
    uint32_t stamp_stage = position_.stage;
    for (uint32_t k = 0; k < k_tiles; ++k) {
      while (loaded < k_tiles && loaded - k < kStages) {
        if (!agree(ptx::mbarrier_test_wait(empty_barrier(), position_.parity ^ 1))) {
          if (loaded > k) break;
          if (!warp_wait<Shared>(empty_barrier(), position_.parity ^ 1)) return false;
        }
        if (ptx::elect_one()) load_stage(from, loaded);
        __syncwarp();
        position_.advance();
        ++loaded;
      }
      if (k == 0 && ptx::elect_one()) trace_(work.tile, 0);
      const float scale = scales_.at(k);
      if (k + 1 == k_tiles) {
        find_next();
      } else if (LaneScales::ends(k)) {
        scales_.fetch(work.weight_scales, k_tiles, k + 1);
      }
      if (ptx::elect_one()) {
        const uint32_t in_group = k % kScaleGroup;
        shared_->resident_stamp[stamp_stage] = {
            slot | (k + 1 == k_tiles ? kStageLast : 0),
            (scale_slot(k) * kResidentRows * kScaleGroup + in_group) * 4u,
            {scale, scale}};
        ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_full[stamp_stage]));
      }
      __syncwarp();
      stamp_stage = stamp_stage + 1 == kStages ? 0 : stamp_stage + 1;
      // What came in the meantime is known when this tile's loads are on their way.
      if (k == k_tiles / 4) want(&shared_->wanted.resident, &shared_->begun.resident);
      if (k + kLookAhead == k_tiles) inbox_.glance();
    }
    first_scale_slot_ = scale_slot(k_tiles + kScaleGroup - 1);
    return true;
  }

  __device__ __forceinline__ void load_stage(const From& from, uint32_t k) {
    const uint32_t stage = position_.stage;
    const uint32_t full = ptx::shared_address(&shared_->resident_full[stage]);
    ptx::tma_load_2d(ptx::shared_address(shared_->resident_weights[stage]),
                     &from.binding->weights_map, k * kTileK, from.first_weight_row, full,
                     ptx::CacheHint::kEvictFirst);
    ptx::tma_load_2d(ptx::shared_address(shared_->resident_rows[stage]), &from.binding->rows_map,
                     k * kTileK, from.first_row, full, ptx::CacheHint::kEvictLast);
    if (k % kScaleGroup == 0) {
      ptx::tma_load_2d(ptx::shared_address(shared_->resident_row_scales[scale_slot(k)]),
                       &from.binding->row_scales_map, k, from.first_row, full,
                       ptx::CacheHint::kEvictLast);
    }
    // The phase cannot complete before the stamp's arrival, so the bytes may be expected last.
    ptx::mbarrier_expect(full, (kResidentWeightRows + kResidentRows) * kTileK +
                                   (k % kScaleGroup == 0 ? kResidentRows * kScaleGroup * 4 : 0));
  }

  // As many slots as stages: a slot is free when the stage of its last k tile is.
  __device__ __forceinline__ uint32_t scale_slot(uint32_t k) const {
    return (first_scale_slot_ + k / kScaleGroup) % kStages;
  }

  __device__ __forceinline__ void end(uint32_t slot) {
    if (!warp_wait<Shared>(empty_barrier(), position_.parity ^ 1)) return;
    if (ptx::elect_one()) {
      shared_->resident_stamp[position_.stage].flags = kStageEnd | slot;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_full[position_.stage]));
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_work_empty[slot]));
    }
  }

  Shared* shared_;
  Trace trace_;
  Inbox inbox_;
  RingPosition<kWorkSlots> queue_, owned_;
  uint32_t next_ = kNone;  // work slot of the next tile, taken ahead
  LaneScales scales_;
  uint32_t loading_ = 0;  // what control.resident_loads says
  RingPosition<Shared::kResidentSlots> position_;
  uint32_t first_scale_slot_ = 0;  // of the tile at hand
};

}  // namespace expertplex::cuda
