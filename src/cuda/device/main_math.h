// The main pipeline's math: two warpgroups that multiply the stages of the ring in order, promote
// each k tile's product to fp32 with its scales, and store the tile. Everything they do follows
// from the stamps.
//
// FP8 products are accumulated by the tensor core with about 14 bits; promoting every 128 of K is
// what keeps them exact enough (notes/kernels.md 10.2). The order of additions is fixed: k
// ascending, so a row's result depends on nothing but the row and the weights.
//
// What the speed hangs on (H200, GLM gate_up, 8 x 8,192 rows):
// - one loop for each use of the stages, with one branch in it: a branch between the wait and the
//   products costs 10 %;
// - all addresses are immediates plus stage * constant, which ptxas keeps in uniform registers;
// - accumulators are cleared at the end of a tile: at its first stage it would be 128 selects on
//   every stage (813 TFLOP/s);
// - barrier and stamp of the next stage are read beside the additions, not beside the products: the
//   issue of four products takes nearly as long as they do.
#pragma once

#include <cstddef>

#include "cuda/device/shared_layout.h"
#include "cuda/device/store_rows.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/global_memory.h"
#include "cuda/ptx/warp.h"
#include "cuda/ptx/wgmma.h"

namespace expertplex::cuda {

// Where a CTA's main math warps put the accumulators of an interrupted tile, [2 waves][16][256
// threads] of 16 bytes: 128 KB that stay in L2. Every thread reads what it wrote itself.
constexpr uint32_t kParkedVectors = 2 * 16 * 256;

// Parking says where that is; a source that never interrupts has none.
template <GemmConfig kConfig, uint32_t kGroup, typename Parking>
class MainMath {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ MainMath(Shared* shared, const Parking& parking)
      : shared_(shared), parking_(parking) {
    lane_ = ptx::keep_in_register(threadIdx.x % 32);
    row_ = ptx::keep_in_register((threadIdx.x / 32) % 4 * 16 + threadIdx.x % 32 / 4);
    row_scales_ = ptx::keep_in_register(kSharedBase + offsetof(Shared, main_row_scales) +
                                        row_ * kScaleRowBytes);
    clear();
  }

  // Until kStageEnd or an abort.
  __device__ __forceinline__ void run() {
    while (acquire()) {
      const uint32_t kind = stamp_.flags & (kStageSwapped | kStageSecondWave);
      bool more;
      if (Parking::kUsed && (stamp_.flags & kStageResume)) fetch_parked();
      if (kind == kStageSecondWave) {
        more = tile<false, true>();
      } else if (kind == 0) {
        more = tile<false, false>();
      } else if (kind == kStageSwapped) {
        more = tile<true, false>();
      } else {
        more = tile<true, true>();
      }
      if (!more) return;
    }
  }

 private:
  static constexpr uint32_t kWaveRows = 64;
  static constexpr uint32_t kWaveStep = kWaveRows * kTileK / 16;  // of an operand's low word
  static constexpr uint32_t kScaleRowBytes = kScaleGroup * 4;

  __device__ __forceinline__ static constexpr uint32_t full_barrier(uint32_t stage) {
    return kSharedBase + offsetof(Shared, main_full) + stage * 8;
  }
  __device__ __forceinline__ static StageStamp stamp_of(uint32_t stage) {
    return load_stamp(kSharedBase + offsetof(Shared, main_stamp) + stage * 16);
  }

  // Looks at the next stage before it is needed, so that the latencies of barrier and stamp pass
  // while products are added. The stamp's address hangs on the barrier's answer: a load that only
  // follows the look in program order has read the stamp before the barrier was seen complete
  // (lanes of one warp with different stamps, one wrong k tile in some 10^5).
  __device__ __forceinline__ void look_ahead() {
    const bool wraps = stage_ + 1 == kConfig.main_stages;
    const uint32_t next = wraps ? 0 : stage_ + 1;
    ready_ = ptx::mbarrier_test_wait(full_barrier(next), parity_ ^ (wraps ? 1 : 0));
    stamp_ = stamp_of(ready_ ? next : stage_);
  }

  // Has the stage's stamp in stamp_. False: leave.
  __device__ __forceinline__ bool acquire() {
    if (!ready_) {
      if (!wait_phase<Shared>(full_barrier(stage_), parity_)) return false;
      stamp_ = stamp_of(stage_);
    }
    if ((stamp_.flags & kStageEnd) == 0) return true;
    arrive_done(stamp_.flags & kStageSlotMask);
    return false;
  }

  // The acquired stage and all others of its tile. False: leave.
  template <bool kSwapped, bool kSecond>
  __device__ __forceinline__ bool tile() {
#pragma unroll 1
    for (;;) {
      const StageStamp stamp = stamp_;
      wave<0, kSwapped, !kSecond>(stamp);
      if constexpr (kSecond) wave<1, kSwapped, true>(stamp);
      const bool wraps = stage_ + 1 == kConfig.main_stages;
      stage_ = wraps ? 0 : stage_ + 1;
      parity_ ^= wraps ? 1 : 0;
      // One branch on most stages: each costs a warp some 15 cycles.
      const bool last = stamp.flags & kStageLast;
      if (ready_ && !last) continue;
      if (last) {
        finish<kSwapped, kSecond>(stamp.flags);
        return true;
      }
      if (!acquire()) return false;
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t w = 0; w < 2; ++w) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) sum_[w][i] = 0.0f;
    }
  }

  // 64 rows of the tile against 128 columns, one k tile. Prefill: rows 64 * (2 * kWave + kGroup) of
  // the wide operand; decode (swapped): rows 64 * kWave of the narrow one against columns
  // 128 * kGroup of the wide one.
  template <uint32_t kWave, bool kSwapped, bool kFinal>
  __device__ __forceinline__ void wave(const StageStamp& stamp) {
    constexpr uint32_t kFirstRow = (kSwapped ? kWave : 2 * kWave + kGroup) * kWaveRows;
    const uint32_t scale_address = row_scales_ + stamp.scale_offset + kFirstRow * kScaleRowBytes;
    float scale0 = ptx::load_shared(scale_address);
    float scale1 = ptx::load_shared(scale_address + 8 * kScaleRowBytes);
    constexpr uint32_t kWide = ptx::wgmma_operand_low(kSharedBase + offsetof(Shared, main_wide));
    constexpr uint32_t kNarrow =
        ptx::wgmma_operand_low(kSharedBase + offsetof(Shared, main_narrow));
    const uint32_t wide = kWide + stage_ * (kMainWideRows * kTileK / 16);
    const uint32_t narrow = kNarrow + stage_ * (kMainNarrowRows * kTileK / 16);
    float product[64];
    if constexpr (kSwapped) {
      multiply(product, narrow + kWave * kWaveStep, wide + kGroup * 2 * kWaveStep);
    } else {
      multiply(product, wide + (2 * kWave + kGroup) * kWaveStep, narrow);
    }
    if constexpr (kFinal) {
      // Before the additions: the producer can load while they run.
      if (lane_ == 0) {
        ptx::mbarrier_arrive(kSharedBase + offsetof(Shared, main_empty) + stage_ * 8);
      }
      look_ahead();
    }
    scale0 *= stamp.weight_scale[kGroup];
    scale1 *= stamp.weight_scale[kGroup];
#pragma unroll
    for (uint32_t j = 0; j < 16; ++j) {
      sum_[kWave][4 * j] += product[4 * j] * scale0;
      sum_[kWave][4 * j + 1] += product[4 * j + 1] * scale0;
      sum_[kWave][4 * j + 2] += product[4 * j + 2] * scale1;
      sum_[kWave][4 * j + 3] += product[4 * j + 3] * scale1;
    }
  }

  __device__ __forceinline__ static void multiply(float (&product)[64], uint32_t a, uint32_t b) {
    ptx::pin_registers(product);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kTileK / 32; ++k) {
      ptx::Wgmma<128>::multiply(product, ptx::wgmma_operand(a + 2 * k),
                                ptx::wgmma_operand(b + 2 * k), k != 0);
    }
    ptx::wgmma_commit();
    ptx::pin_registers(product);
    ptx::wgmma_wait<0>();
  }

  // The tile is the committer's, as far as this warp goes.
  __device__ __forceinline__ void arrive_done(uint32_t slot) {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_work_done[slot]));
  }

  __device__ __forceinline__ float4* parked() const { return parking_() + (threadIdx.x - 128); }
  // Predicated: with a branch around it ptxas no longer knows stage and parity as uniform, computes
  // every address in every loop and spills (15 %).
  template <uint32_t kWaves>
  __device__ __forceinline__ void park_if(bool parks) {
    float4* to = parked();
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) {
#pragma unroll
      for (uint32_t j = 0; j < 16; ++j) {
        ptx::store_global_if(parks, &to[(w * 16 + j) * 256], sum_[w][4 * j], sum_[w][4 * j + 1],
                             sum_[w][4 * j + 2], sum_[w][4 * j + 3]);
      }
    }
  }
  __device__ __forceinline__ void fetch_parked() {
    const float4* from = parked();
#pragma unroll
    for (uint32_t w = 0; w < 2; ++w) {
#pragma unroll
      for (uint32_t j = 0; j < 16; ++j) {
        const float4 v = from[(w * 16 + j) * 256];
        sum_[w][4 * j] = v.x;
        sum_[w][4 * j + 1] = v.y;
        sum_[w][4 * j + 2] = v.z;
        sum_[w][4 * j + 3] = v.w;
      }
    }
  }

  template <bool kSwapped, bool kSecond>
  __device__ __forceinline__ void finish(uint32_t flags) {
    const uint32_t slot = flags & kStageSlotMask;
    const TileWork& work = shared_->main_work[slot];
    if constexpr (!kSwapped && Parking::kUsed) park_if<kSecond ? 2 : 1>(work.flags & kWorkParks);
    constexpr uint32_t kFirstRow = kSwapped ? 0 : kGroup * kWaveRows;
    constexpr uint32_t kSecondRow = kSwapped ? kWaveRows : 2 * kWaveRows;
    const uint32_t stride = work.output_stride;
    const uint32_t row = kFirstRow + row_;
    const uint32_t column = (lane_ % 4) * 8 + (kSwapped ? kGroup * 128 : 0);
    __nv_bfloat16* output = work.output + size_t{row} * stride + column;
    const int32_t rows_left = static_cast<int32_t>(work.row_count) - static_cast<int32_t>(row);
    store_rows(output, stride, sum_[0], lane_, rows_left);
    if constexpr (kSecond) {
      store_rows(output + size_t{kSecondRow} * stride, stride, sum_[1], lane_,
                 rows_left - static_cast<int32_t>(kSecondRow));
    }
    arrive_done(slot);
    clear();
  }

  Shared* shared_;
  const Parking& parking_;
  uint32_t lane_;
  uint32_t row_;         // this thread's first row of a wave's 64; the other is 8 further
  uint32_t row_scales_;  // shared address of its scale in slot 0
  uint32_t stage_ = 0, parity_ = 0;
  StageStamp stamp_;  // of the next stage, if ready_
  bool ready_ = false;
  float sum_[2][64];
};

}  // namespace expertplex::cuda
