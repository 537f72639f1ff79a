// From an announced operation (apk/announcement.h) to the tile that a cluster owns of it: a whole
// warp makes it from the senders' counts.
#pragma once

#include "apk/announcement.h"
#include "apk/device_memory.h"
#include "apk/scheduler_storage.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/shared_layout.h"
#include "cuda/ptx/global_memory.h"

namespace expertplex::cuda {

enum class OwnTile : uint8_t {
  kTile,
  kNone,    // there is none for this cluster, or the operation is over
  kNotYet,  // the counts have not come yet: look again
};

class AnnouncedTile {
 public:
  using Memory = apk::DeviceMemory;
  // Experts whose counts come with a look: two a lane.
  static constexpr uint32_t kMostExperts = 64;

  // `entry` is that of the operation's slot.
  __device__ __forceinline__ AnnouncedTile(const ApkParameters& parameters, const InboxEntry& entry)
      : p_(parameters), entry_(entry) {}

  // This lane's counts, those of experts 2 * lane and 2 * lane + 1: half a look.
  static __device__ __forceinline__ ptx::WordPair load_counts(const ApkSlot& box,
                                                              uint32_t experts) {
    const uint32_t first = threadIdx.x % 32 * 2;
    return first < experts ? ptx::load_word_pair(&box.rows_per_expert[first]) : ptx::WordPair{};
  }

  // All lanes. The tile of this cluster's number. most_rows: of a tile.
  __device__ __forceinline__ OwnTile find(const apk::Announcement& a, const ptx::WordPair& counts,
                                          uint32_t most_rows) {
    const uint32_t lane = threadIdx.x % 32, experts = entry_.experts;
    if (experts > kMostExperts) return place(a);
    const bool first = 2 * lane < experts, second = 2 * lane + 1 < experts;
    const int32_t ahead =
        max(first ? distance(counts.first, a) : 0, second ? distance(counts.second, a) : 0);
    const int32_t behind =
        min(first ? distance(counts.first, a) : 0, second ? distance(counts.second, a) : 0);
    // Counts of a later operation: the announced one is over.
    if (__any_sync(kAll, ahead > 0)) return OwnTile::kNone;
    if (__any_sync(kAll, behind < 0)) return OwnTile::kNotYet;
    const uint32_t rows0 = first ? static_cast<uint32_t>(counts.first) : 0;
    const uint32_t rows1 = second ? static_cast<uint32_t>(counts.second) : 0;
    if (__any_sync(kAll, max(rows0, rows1) > most_rows)) return place(a);
    // A row block for each expert with rows: no sums, no divisions.
    const uint32_t present0 = __ballot_sync(kAll, rows0 > 0);
    const uint32_t present1 = __ballot_sync(kAll, rows1 > 0);
    const uint32_t below = (1u << lane) - 1;
    const uint32_t rank = __popc(present0 & below) + __popc(present1 & below);
    const bool mine0 = rows0 > 0 && rank == entry_.row_block;
    const bool mine1 = rows1 > 0 && rank + (rows0 > 0 ? 1 : 0) == entry_.row_block;
    const uint32_t holder = __ballot_sync(kAll, mine0 || mine1);
    if (holder == 0) return OwnTile::kNone;
    const uint32_t from = static_cast<uint32_t>(__ffs(static_cast<int>(holder))) - 1;
    tile = apk::announced_tile(a, __popc(present0) + __popc(present1));
    tile.expert = static_cast<uint16_t>(__shfl_sync(kAll, 2 * lane + (mine0 ? 0 : 1), from));
    tile.row_block = entry_.row_block;
    tile.row_count = __shfl_sync(kAll, mine0 ? rows0 : rows1, from);
    tile.column_tile = entry_.column_tile;
    return OwnTile::kTile;
  }

  apk::TileDescriptor tile;  // what find() found

 private:
  static constexpr uint32_t kAll = 0xffffffff;

  // How many operations later than the announced one a count is.
  static __device__ __forceinline__ int32_t distance(uint64_t count, const apk::Announcement& a) {
    return static_cast<int32_t>(static_cast<uint32_t>(count >> 32) - a.epoch);
  }

  // The general case: sums over the experts, lanes side by side. Also none where the agent is about
  // to refuse the request.
  __device__ __forceinline__ OwnTile place(const apk::Announcement& a) {
    const apk::OperationTemplate& shape = *apk::StorageLayout(p_.limits).operation_template(
        p_.scheduler, apk::Phase::kDecode, a.slot);
    const ApkSlot& box = p_.slots[apk_slot_index(p_.limits, apk::Phase::kDecode, a.slot)];
    const uint32_t experts = shape.experts, height = shape.gate_up.rows;
    const uint32_t columns = shape.gate_up_columns();
    const uint32_t lane = threadIdx.x % 32;
    uint32_t total = 0, expert = 0;
    apk::ExpertRows found;
    bool here = false;
#pragma unroll 1
    for (uint32_t first = 0; first < experts; first += 32) {
      const uint64_t count =
          first + lane < experts
              ? Memory::load(&box.rows_per_expert[first + lane], apk::Relaxed{}, apk::SystemScope{})
              : uint64_t{a.epoch} << 32;
      if (__any_sync(kAll, distance(count, a) > 0)) return OwnTile::kNone;
      if (__any_sync(kAll, distance(count, a) < 0)) return OwnTile::kNotYet;
      const uint32_t rows = static_cast<uint32_t>(count);
      const uint32_t blocks = apk::ceil_div(rows, height);
      uint32_t end = blocks;
#pragma unroll 1
      for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(kAll, end, step);
        if (lane >= step) end += before;
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
    if (!here || total > shape.max_row_blocks) return OwnTile::kNone;
    tile = apk::announced_tile(a, total);
    apk::place_in_expert(shape, expert, found, blockIdx.x, &tile);
    return OwnTile::kTile;
  }

  const ApkParameters& p_;
  const InboxEntry& entry_;
};

}  // namespace expertplex::cuda
