// The resident decode pipeline's math: one warpgroup, operands swapped (128 weight rows are M, 16
// token rows are N), so that few tokens waste no tensor work and a tile needs few registers. It
// runs beside the main pipeline's math in the same SM.
#pragma once

#include <cstddef>

#include "cuda/device/main_math.h"
#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/warp.h"
#include "cuda/ptx/wgmma.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class ResidentMath {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ explicit ResidentMath(Shared* shared) : shared_(shared) {
    warp_ = ptx::keep_in_register((threadIdx.x / 32) % 4);
    lane_ = ptx::keep_in_register(threadIdx.x % 32);
    clear();
  }

  // Until kStageEnd or an abort.
  __device__ __forceinline__ void run() {
    uint32_t stage = 0, parity = 0;
#pragma unroll 1
    while (step(stage, parity)) {
      if (++stage == kConfig.resident_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  static constexpr uint32_t kWaves = kResidentWeightRows / 64;
  static constexpr uint32_t kTokenGroups = kResidentRows / 8;

  // The stage's turn bounds the tile's speed (4 stages in flight, 2 us from load to arrival), so
  // little waits between its full and its empty barrier. Products are issued in one piece: a load
  // that is waited for between them lets the main pipeline's products in, which take far longer
  // (140 instead of 100 us in mid-prefill).
  __device__ __forceinline__ bool step(uint32_t stage, uint32_t parity) {
    if (!wait_phase<Shared>(kSharedBase + offsetof(Shared, resident_full) + stage * 8, parity)) {
      return false;
    }
    const StageStamp stamp =
        load_stamp(kSharedBase + offsetof(Shared, resident_stamp) + stage * 16);
    if (stamp.flags & kStageEnd) {
      arrive_done(stamp.flags & kStageSlotMask);
      return false;
    }
    float product[kWaves][kResidentRows / 2];
    multiply(stage, product);
    if (lane_ == 0)
      ptx::mbarrier_arrive(kSharedBase + offsetof(Shared, resident_empty) + stage * 8);
    add(product, stamp);
    if (stamp.flags & kStageLast) finish(stamp.flags & kStageSlotMask);
    return true;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) {
#pragma unroll
      for (uint32_t i = 0; i < kResidentRows / 2; ++i) sum_[w][i] = 0.0f;
    }
  }

  __device__ __forceinline__ static void multiply(uint32_t stage,
                                                  float (&product)[kWaves][kResidentRows / 2]) {
    constexpr uint32_t kWeights =
        ptx::wgmma_operand_low(kSharedBase + offsetof(Shared, resident_weights));
    constexpr uint32_t kRows =
        ptx::wgmma_operand_low(kSharedBase + offsetof(Shared, resident_rows));
    const uint32_t weights = kWeights + stage * (kResidentWeightRows * kTileK / 16);
    const uint32_t rows = kRows + stage * (kResidentRows * kTileK / 16);
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) ptx::pin_registers(product[w]);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) {
#pragma unroll
      for (uint32_t k = 0; k < kTileK / 32; ++k) {
        ptx::Wgmma<kResidentRows>::multiply(
            product[w], ptx::wgmma_operand(weights + w * (64 * kTileK / 16) + 2 * k),
            ptx::wgmma_operand(rows + 2 * k), k != 0);
      }
    }
    ptx::wgmma_commit();
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) ptx::pin_registers(product[w]);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (uint32_t w = 0; w < kWaves; ++w) ptx::pin_registers(product[w]);
  }

  // Token scales are read after their stage was given back: their slot is loaded again three groups
  // later, which the ring does not reach before this warp's next arrival.
  __device__ __forceinline__ void add(const float (&product)[kWaves][kResidentRows / 2],
                                      const StageStamp& stamp) {
    const uint32_t scales = kSharedBase + offsetof(Shared, resident_row_scales) +
                            stamp.scale_offset + (lane_ % 4) * 2 * kScaleGroup * 4;
#pragma unroll
    for (uint32_t j = 0; j < kTokenGroups; ++j) {
      const float x = ptx::load_shared(scales + j * 8 * kScaleGroup * 4) * stamp.weight_scale[0];
      const float y =
          ptx::load_shared(scales + (j * 8 + 1) * kScaleGroup * 4) * stamp.weight_scale[0];
#pragma unroll
      for (uint32_t w = 0; w < kWaves; ++w) {
        sum_[w][4 * j] += product[w][4 * j] * x;
        sum_[w][4 * j + 1] += product[w][4 * j + 1] * y;
        sum_[w][4 * j + 2] += product[w][4 * j + 2] * x;
        sum_[w][4 * j + 3] += product[w][4 * j + 3] * y;
      }
    }
  }

  __device__ __forceinline__ void finish(uint32_t slot) {
    const TileWork& work = shared_->resident_work[slot];
    const uint32_t stride = work.output_stride;
    const uint32_t rows = work.row_count;
    const uint32_t first = (lane_ % 4) * 2;
    __nv_bfloat16* output = work.output + size_t{first} * stride + warp_ * 16 + lane_ / 4;
#pragma unroll
    for (uint32_t j = 0; j < kTokenGroups; ++j) {
#pragma unroll
      for (uint32_t t = 0; t < 2; ++t) {
        if (first + 8 * j + t >= rows) continue;
        __nv_bfloat16* row = output + size_t{8 * j + t} * stride;
#pragma unroll
        for (uint32_t w = 0; w < kWaves; ++w) {
          row[w * 64] = __float2bfloat16(sum_[w][4 * j + t]);
          row[w * 64 + 8] = __float2bfloat16(sum_[w][4 * j + 2 + t]);
        }
      }
    }
    arrive_done(slot);
    clear();
  }

  __device__ __forceinline__ void arrive_done(uint32_t slot) {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_->resident_work_done[slot]));
  }

  Shared* shared_;
  uint32_t warp_, lane_;
  float sum_[kWaves][kResidentRows / 2];
};

}  // namespace expertplex::cuda
