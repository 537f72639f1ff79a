// The resident decode pipeline's producer: one warp, as main_producer.h, for 128 weight rows and 16
// token rows a stage.
#pragma once

#include "cuda/device/lane_scales.h"
#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig, typename Trace>
class ResidentProducer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ ResidentProducer(Shared* shared, const Trace& trace)
      : shared_(shared), trace_(trace) {}

  // Until kWorkEnd or an abort.
  __device__ __forceinline__ void run() {
    RingPosition<kWorkSlots> queue;
    for (;;) {
      const uint32_t full = ptx::shared_address(&shared_->resident_work_full[queue.stage]);
      if (!agree(ptx::mbarrier_test_wait(full, queue.parity))) {
        set_loading(0);
        if (!warp_wait<Shared>(full, queue.parity)) return;
      }
      const TileWork& work = shared_->resident_work[queue.stage];
      if (work.flags & kWorkEnd) {
        end(queue.stage);
        return;
      }
      set_loading(1);
      if (!load(work, queue.stage)) return;
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_work_empty[queue.stage]));
      }
      __syncwarp();
      queue.advance();
    }
  }

 private:
  static constexpr uint32_t kStages = kConfig.resident_stages;

  __device__ __forceinline__ void set_loading(uint32_t value) {
    if (ptx::elect_one()) {
      ptx::store_shared_word(ptx::shared_address(&shared_->control.resident_loads), value);
    }
    __syncwarp();
  }
  __device__ __forceinline__ uint32_t empty_barrier() const {
    return ptx::shared_address(&shared_->resident_empty[position_.stage]);
  }

  // Loads go out as far as stages are free, then their stamps: in a ring that is all empty four
  // loads are on their way before the first weight scale has come.
  __device__ __forceinline__ bool load(const TileWork& work, uint32_t slot) {
    const uint32_t k_tiles = work.k_tiles;
    LaneScales scales(work.weight_scales, k_tiles, 0);
    uint32_t loaded = 0;
    uint32_t stamp_stage = position_.stage;
    for (uint32_t k = 0; k < k_tiles; ++k) {
      while (loaded < k_tiles && loaded - k < kStages) {
        if (!agree(ptx::mbarrier_test_wait(empty_barrier(), position_.parity ^ 1))) {
          if (loaded > k) break;
          if (!warp_wait<Shared>(empty_barrier(), position_.parity ^ 1)) return false;
        }
        if (ptx::elect_one()) {
          if (loaded == 0) trace_(work.tile, 0);
          load_stage(work, loaded);
        }
        __syncwarp();
        position_.advance();
        ++loaded;
      }
      const float scale = scales.at(k);
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
    }
    first_scale_slot_ = scale_slot(k_tiles + kScaleGroup - 1);
    return true;
  }

  __device__ __forceinline__ void load_stage(const TileWork& work, uint32_t k) {
    const uint32_t stage = position_.stage;
    const uint32_t full = ptx::shared_address(&shared_->resident_full[stage]);
    ptx::mbarrier_expect(full, (kResidentWeightRows + kResidentRows) * kTileK +
                                   (k % kScaleGroup == 0 ? kResidentRows * kScaleGroup * 4 : 0));
    ptx::tma_load_2d(ptx::shared_address(shared_->resident_weights[stage]),
                     &work.binding->weights_map, k * kTileK, work.first_weight_row, full,
                     ptx::CacheHint::kEvictFirst);
    ptx::tma_load_2d(ptx::shared_address(shared_->resident_rows[stage]), &work.binding->rows_map,
                     k * kTileK, work.first_row, full, ptx::CacheHint::kEvictLast);
    if (k % kScaleGroup != 0) return;
    ptx::tma_load_2d(ptx::shared_address(shared_->resident_row_scales[scale_slot(k)]),
                     &work.binding->row_scales_map, k, work.first_row, full,
                     ptx::CacheHint::kEvictLast);
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
  RingPosition<Shared::kResidentSlots> position_;
  uint32_t first_scale_slot_ = 0;  // of the tile at hand
};

}  // namespace expertplex::cuda
