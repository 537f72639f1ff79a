// The writing end of a work queue: turns a tile into work and hands it to a pipeline's producer,
// math warps and committer. One thread uses it, or one warp.
#pragma once

#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/global_memory.h"

namespace expertplex::cuda {

// Of the main pipeline: tiles in their turn, claimed decode tiles, and decode tiles that the
// cluster owns (apk/announcement.h); the last two go first, and may interrupt a prefill tile. Of
// the resident pipeline: claimed and owned.
enum class Queue : uint8_t { kMain, kMainUrgent, kMainOwned, kResident, kResidentOwned };

__device__ __forceinline__ constexpr bool is_resident(Queue queue) {
  return queue == Queue::kResident || queue == Queue::kResidentOwned;
}

// Three loads side by side, in program order: an acquire that follows does not hold them up.
__device__ __forceinline__ BindingHead load_head(const GemmBinding* binding) {
  BindingHead head;
  static_assert(sizeof(head) == 48);
  auto* words = reinterpret_cast<uint4*>(&head);
  const auto* from = reinterpret_cast<const uint4*>(&binding->head);
#pragma unroll
  for (uint32_t i = 0; i < sizeof(head) / sizeof(uint4); ++i) {
    words[i] = ptx::load_global_constant(from + i);
  }
  return head;
}

template <Queue kQueue>
__device__ __forceinline__ void make_work(const GemmBinding* binding, const BindingHead& head,
                                          const apk::TileDescriptor& tile, TileWork* work) {
  const bool swapped = !is_resident(kQueue) && tile.phase == apk::Phase::kDecode;
  const uint32_t tile_columns = is_resident(kQueue) ? kResidentWeightRows
                                : swapped           ? kMainWideRows
                                                    : kMainNarrowRows;
  const uint32_t half = swapped ? kMainNarrowRows / 2 : kMainWideRows / 2;
  // Bindings never change while a kernel runs; the rows of a block do.
  const uint32_t first_row = head.masked_capacity > 0
                                 ? tile.expert * head.masked_capacity + tile.first_row
                                 : head.block_first_row[tile.row_block];
  const uint32_t first_column = tile.column_tile * tile_columns;
  const uint32_t first_weight_row = tile.expert * head.columns + first_column;
  work->binding = binding;
  work->weight_scales = head.weight_scales + size_t{first_weight_row / 128} * head.k_tiles;
  work->output = head.output + size_t{first_row} * head.output_stride + first_column;
  work->output_stride = head.output_stride;
  work->row_count = tile.row_count;
  work->first_row = first_row;
  work->first_weight_row = first_weight_row;
  work->k_tiles = head.k_tiles;
  work->flags = (swapped ? kWorkSwapped : 0) |
                (!is_resident(kQueue) && tile.row_count > half ? kWorkSecondWave : 0);
  work->tile = tile;
}

template <GemmConfig kConfig, Queue kQueue>
class WorkQueue {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ explicit WorkQueue(Shared* shared) : shared_(shared) {}

  // Whether push() would not wait.
  __device__ __forceinline__ bool has_room() const {
    return ptx::mbarrier_test_wait(ptx::shared_address(&empty()[slot()]), position_.parity ^ 1);
  }
  // Tiles pushed so far.
  __device__ __forceinline__ uint32_t pushed() const { return pushed_; }
  __device__ __forceinline__ bool wait_for_room() const {
    return wait_phase<Shared>(ptx::shared_address(&empty()[slot()]), position_.parity ^ 1);
  }

  // REQUIRES: there is room.
  __device__ __forceinline__ void push(const GemmBinding* binding, const BindingHead& head,
                                       const apk::TileDescriptor& tile) {
    make_work<kQueue>(binding, head, tile, &work()[slot()]);
    publish();
    advance();
    ++pushed_;
  }
  __device__ __forceinline__ void push_end() {
    work()[slot()].flags = kWorkEnd;
    publish();
    advance();
  }

  // Of a warp that keeps the queue together: for the lanes that do not push.
  __device__ __forceinline__ void advance() { position_.advance(); }

 private:
  static constexpr uint32_t kFirstSlot = kQueue == Queue::kMainUrgent      ? kMainUrgentSlot
                                         : kQueue == Queue::kMainOwned     ? kMainOwnedSlot
                                         : kQueue == Queue::kResidentOwned ? kResidentOwnedSlot
                                                                           : 0;

  __device__ __forceinline__ uint32_t slot() const { return kFirstSlot + position_.stage; }
  __device__ __forceinline__ void publish() {
    ptx::mbarrier_arrive(ptx::shared_address(&full()[slot()]));
  }
  __device__ __forceinline__ TileWork* work() const {
    return is_resident(kQueue) ? shared_->resident_work : shared_->main_work;
  }
  __device__ __forceinline__ uint64_t* full() const {
    return is_resident(kQueue) ? shared_->resident_work_full : shared_->main_work_full;
  }
  __device__ __forceinline__ uint64_t* empty() const {
    return is_resident(kQueue) ? shared_->resident_work_empty : shared_->main_work_empty;
  }

  Shared* shared_;
  RingPosition<kWorkSlots> position_;
  uint32_t pushed_ = 0;
};

}  // namespace expertplex::cuda
