// The scheduler warp's end of a pipeline's work queue: turns a tile into work and hands it to the
// pipeline's producer and math warps.
#pragma once

#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"

namespace expertplex::cuda {

enum class Pipeline : uint8_t { kMain, kResident };

template <Pipeline kPipeline>
__device__ __forceinline__ void make_work(const GemmBinding* binding,
                                          const apk::TileDescriptor& tile, TileWork* work) {
  const bool swapped = kPipeline == Pipeline::kMain && tile.phase == apk::Phase::kDecode;
  const uint32_t tile_columns = kPipeline == Pipeline::kResident ? kResidentWeightRows
                                : swapped                        ? kMainWideRows
                                                                 : kMainNarrowRows;
  const uint32_t half = swapped ? kMainNarrowRows / 2 : kMainWideRows / 2;
  // Bindings never change while a kernel runs; the rows of a block do.
  const uint32_t columns = __ldg(&binding->columns), stride = __ldg(&binding->output_stride);
  const uint32_t k_tiles = __ldg(&binding->k_tiles);
  const uint32_t capacity = __ldg(&binding->masked_capacity);
  const uint32_t first_row = capacity > 0 ? tile.expert * capacity + tile.first_row
                                          : binding->block_first_row[tile.row_block];
  const uint32_t first_column = tile.column_tile * tile_columns;
  const uint32_t first_weight_row = tile.expert * columns + first_column;
  work->binding = binding;
  work->weight_scales = binding->weight_scales + size_t{first_weight_row / 128} * k_tiles;
  work->output = binding->output + size_t{first_row} * stride + first_column;
  work->output_stride = stride;
  work->row_count = tile.row_count;
  work->first_row = first_row;
  work->first_weight_row = first_weight_row;
  work->k_tiles = k_tiles;
  work->flags = (swapped ? kWorkSwapped : 0) |
                (kPipeline == Pipeline::kMain && tile.row_count > half ? kWorkSecondWave : 0);
  work->tile = tile;
}

template <GemmConfig kConfig, Pipeline kPipeline>
class WorkQueue {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ explicit WorkQueue(Shared* shared) : shared_(shared) {}

  // Whether push() would not wait.
  __device__ __forceinline__ bool has_room() const {
    return ptx::mbarrier_test_wait(ptx::shared_address(&empty()[position_.stage]),
                                   position_.parity ^ 1);
  }
  __device__ __forceinline__ bool wait_for_room() const {
    return wait_phase(ptx::shared_address(&empty()[position_.stage]), position_.parity ^ 1,
                      ptx::shared_address(&shared_->abort));
  }

  // REQUIRES: there is room.
  __device__ __forceinline__ void push(const GemmBinding* binding,
                                       const apk::TileDescriptor& tile) {
    make_work<kPipeline>(binding, tile, &work()[position_.stage]);
    publish();
  }
  __device__ __forceinline__ void push_end() {
    work()[position_.stage].flags = kWorkEnd;
    publish();
  }

 private:
  __device__ __forceinline__ void publish() {
    ptx::mbarrier_arrive(ptx::shared_address(&full()[position_.stage]));
    position_.advance();
  }
  __device__ __forceinline__ TileWork* work() const {
    return kPipeline == Pipeline::kMain ? shared_->main_work : shared_->resident_work;
  }
  __device__ __forceinline__ uint64_t* full() const {
    return kPipeline == Pipeline::kMain ? shared_->main_work_full : shared_->resident_work_full;
  }
  __device__ __forceinline__ uint64_t* empty() const {
    return kPipeline == Pipeline::kMain ? shared_->main_work_empty : shared_->resident_work_empty;
  }

  Shared* shared_;
  RingPosition<kWorkSlots> position_;
};

}  // namespace expertplex::cuda
