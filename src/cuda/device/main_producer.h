// The main pipeline's producer: one warp that loads the k tiles of each tile of work into the ring
// and stamps every stage with what it is. It is the only one that orders stages; math warps follow
// the stamps.
//
// Row scales travel row-major with the rows; they come as TMA boxes of four k tiles (16 bytes) a
// row. Copying them with cp.async from all lanes cost the main pipeline 5 %: it takes the
// load/store unit from the math warps.
#pragma once

#include "apk/policy.h"
#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class MainProducer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ explicit MainProducer(Shared* shared) : shared_(shared) {}

  // Until kWorkEnd or an abort.
  __device__ __forceinline__ void run() {
    RingPosition<kWorkSlots> queue;
    for (;;) {
      if (!wait(&shared_->main_work_full[queue.stage], queue.parity)) return;
      const TileWork& work = shared_->main_work[queue.stage];
      if (work.flags & kWorkEnd) {
        end();
        return;
      }
      if (!load(work, queue.stage)) return;
      __syncwarp();
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_work_empty[queue.stage]));
      }
      queue.advance();
    }
  }

 private:
  static constexpr uint32_t kScaleRowBytes = kScaleGroup * 4;
  static constexpr uint32_t kScaleSlotBytes = kMainWideRows * kScaleRowBytes;

  __device__ __forceinline__ bool wait(const uint64_t* barrier, uint32_t parity) {
    return wait_phase(ptx::shared_address(barrier), parity, ptx::shared_address(&shared_->abort));
  }

  __device__ __forceinline__ bool load(const TileWork& work, uint32_t slot) {
    const GemmBinding* binding = work.binding;
    const uint32_t first_row = work.first_row;
    const uint32_t first_weight_row = work.first_weight_row;
    const uint32_t k_tiles = work.k_tiles;
    const bool swapped = work.flags & kWorkSwapped;
    const float* scales = work.weight_scales;
    const uint32_t second_scale = swapped ? k_tiles : 0;
    const uint32_t flags = slot | (swapped ? kStageSwapped : 0) |
                           (work.flags & kWorkSecondWave ? kStageSecondWave : 0);
    float scale0 = __ldg(scales), scale1 = __ldg(scales + second_scale);
    for (uint32_t k = 0; k < k_tiles; ++k) {
      const uint32_t stage = position_.stage;
      const uint32_t full = ptx::shared_address(&shared_->main_full[stage]);
      if (!swapped && !hold_back()) return false;
      if (!wait(&shared_->main_empty[stage], position_.parity ^ 1)) return false;
      const uint32_t in_group = k % kScaleGroup;
      if (ptx::elect_one()) {
        StageStamp stamp;
        stamp.flags = flags | (k + 1 == k_tiles ? kStageLast : 0);
        stamp.scale_offset = scales_.stage * kScaleSlotBytes + in_group * 4;
        stamp.weight_scale[0] = scale0;
        stamp.weight_scale[1] = scale1;
        shared_->main_stamp[stage] = stamp;
        const uint32_t scale_bytes =
            in_group == 0 ? (swapped ? kMainNarrowRows : kMainWideRows) * kScaleRowBytes : 0;
        ptx::mbarrier_arrive_expect(full, (kMainWideRows + kMainNarrowRows) * kTileK + scale_bytes);
        const uint32_t wide = ptx::shared_address(shared_->main_wide[stage]);
        const uint32_t narrow = ptx::shared_address(shared_->main_narrow[stage]);
        ptx::tma_load_2d(swapped ? narrow : wide, &binding->rows_map, k * kTileK, first_row, full,
                         ptx::CacheHint::kNormal);
        ptx::tma_load_2d(swapped ? wide : narrow, &binding->weights_map, k * kTileK,
                         first_weight_row, full, ptx::CacheHint::kNormal);
        if (in_group == 0) {
          ptx::tma_load_2d(ptx::shared_address(shared_->main_row_scales[scales_.stage]),
                           &binding->row_scales_map, k, first_row, full, ptx::CacheHint::kNormal);
        }
      }
      __syncwarp();
      if (k + 1 < k_tiles) {
        scale0 = __ldg(scales + k + 1);
        scale1 = __ldg(scales + k + 1 + second_scale);
      }
      if (in_group == kScaleGroup - 1 || k + 1 == k_tiles) scales_.advance();
      position_.advance();
      if (loaded_ < kConfig.main_stages) ++loaded_;
    }
    return true;
  }

  // Before a prefill stage: keeps to the pause policy. Window W: at most W stages are loaded and
  // not consumed; all: nothing is loaded until the policy changes. Math warps starve with their
  // accumulators in registers.
  __device__ __forceinline__ bool hold_back() {
    for (;;) {
      const auto policy = static_cast<apk::PausePolicy>(
          ptx::load_shared_word(ptx::shared_address(&shared_->pause)));
      const uint32_t window = apk::loads_in_flight(policy, kConfig.main_stages);
      if (window == kConfig.main_stages) return true;
      if (window > 0) {
        // The stage `window` loads ago must be consumed: by its parity, as of its own load.
        const bool wraps = position_.stage < window;
        const uint32_t back = position_.stage + (wraps ? kConfig.main_stages : 0) - window;
        const uint32_t parity = position_.parity ^ (wraps ? 1 : 0);
        if (loaded_ < window ||
            ptx::mbarrier_test_wait(ptx::shared_address(&shared_->main_empty[back]), parity)) {
          return true;
        }
      }
      if (ptx::load_shared_word(ptx::shared_address(&shared_->abort)) != 0) return false;
    }
  }

  __device__ __forceinline__ void end() {
    if (!wait(&shared_->main_empty[position_.stage], position_.parity ^ 1)) return;
    if (ptx::elect_one()) {
      shared_->main_stamp[position_.stage].flags = kStageEnd;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_full[position_.stage]));
    }
  }

  Shared* shared_;
  RingPosition<kConfig.main_stages> position_;
  RingPosition<Shared::kScaleSlots> scales_;
  uint32_t loaded_ = 0;  // stages loaded so far, up to a ring's length
};

}  // namespace expertplex::cuda
