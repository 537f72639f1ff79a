// The resident decode pipeline's producer: one thread, as main_producer.h, for 128 weight rows and
// 16 token rows a stage.
#pragma once

#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/tma.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class ResidentProducer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ explicit ResidentProducer(Shared* shared) : shared_(shared) {}

  // Until kWorkEnd or an abort.
  __device__ __forceinline__ void run() {
    RingPosition<kWorkSlots> queue;
    for (;;) {
      if (!wait(&shared_->resident_work_full[queue.stage], queue.parity)) return;
      const TileWork& work = shared_->resident_work[queue.stage];
      if (work.flags & kWorkEnd) {
        end();
        return;
      }
      if (!load(work, queue.stage)) return;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_work_empty[queue.stage]));
      queue.advance();
    }
  }

 private:
  __device__ __forceinline__ bool wait(const uint64_t* barrier, uint32_t parity) {
    return wait_phase(ptx::shared_address(barrier), parity, ptx::shared_address(&shared_->abort));
  }

  __device__ __forceinline__ bool load(const TileWork& work, uint32_t slot) {
    const GemmBinding* binding = work.binding;
    const uint32_t first_row = work.first_row;
    const uint32_t first_weight_row = work.first_weight_row;
    const uint32_t k_tiles = work.k_tiles;
    const float* scales = work.weight_scales;
    float scale = __ldg(scales);
    for (uint32_t k = 0; k < k_tiles; ++k) {
      const uint32_t stage = position_.stage;
      const uint32_t full = ptx::shared_address(&shared_->resident_full[stage]);
      if (!wait(&shared_->resident_empty[stage], position_.parity ^ 1)) return false;
      const uint32_t in_group = k % kScaleGroup;
      shared_->resident_stamp[stage] = {slot | (k + 1 == k_tiles ? kStageLast : 0),
                                        (scale_slot_ * kResidentRows * kScaleGroup + in_group) * 4u,
                                        {scale, scale}};
      ptx::mbarrier_arrive_expect(full, (kResidentWeightRows + kResidentRows) * kTileK +
                                            (in_group == 0 ? kResidentRows * kScaleGroup * 4 : 0));
      ptx::tma_load_2d(ptx::shared_address(shared_->resident_weights[stage]), &binding->weights_map,
                       k * kTileK, first_weight_row, full, ptx::CacheHint::kEvictFirst);
      ptx::tma_load_2d(ptx::shared_address(shared_->resident_rows[stage]), &binding->rows_map,
                       k * kTileK, first_row, full, ptx::CacheHint::kEvictLast);
      if (in_group == 0) {
        ptx::tma_load_2d(ptx::shared_address(shared_->resident_row_scales[scale_slot_]),
                         &binding->row_scales_map, k, first_row, full, ptx::CacheHint::kEvictLast);
      }
      if (k + 1 < k_tiles) scale = __ldg(scales + k + 1);
      // As many slots as stages: a slot is free when the stage of its last k tile is.
      if (in_group == kScaleGroup - 1 || k + 1 == k_tiles) {
        scale_slot_ = scale_slot_ + 1 == kConfig.resident_stages ? 0 : scale_slot_ + 1;
      }
      position_.advance();
    }
    return true;
  }

  __device__ __forceinline__ void end() {
    if (!wait(&shared_->resident_empty[position_.stage], position_.parity ^ 1)) return;
    shared_->resident_stamp[position_.stage].flags = kStageEnd;
    ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_full[position_.stage]));
  }

  Shared* shared_;
  RingPosition<Shared::kResidentSlots> position_;
  uint32_t scale_slot_ = 0;
};

}  // namespace expertplex::cuda
