// From an announcement (apk/announcement.h) to the tile that a cluster owns: one round of loads of
// a whole warp, which has all that a producer needs when it comes back.
#pragma once

#include "apk/announcement.h"
#include "apk/device_memory.h"
#include "apk/scheduler_storage.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/work_queue.h"

namespace expertplex::cuda {

enum class OwnTile : uint8_t {
  kTile,
  kNone,    // there is none for this cluster, or the operation is over
  kNotYet,  // the counts have not come yet: look again
};

class AnnouncedTile {
 public:
  using Memory = apk::DeviceMemory;

  // `entry` is that of the announcement's slot.
  __device__ __forceinline__ AnnouncedTile(const ApkParameters& parameters, const InboxEntry& entry)
      : p_(parameters), entry_(entry) {}

  // All lanes. The tile of this cluster's number. kTile: lane 0 has acquired the senders' words.
  // most_rows: of a tile.
  __device__ __forceinline__ OwnTile find(const apk::Announcement& a, uint32_t most_rows) {
    // The agent refuses such a request.
    if (a.layer >= p_.layers) return OwnTile::kNone;
    const uint32_t index = apk_slot_index(p_.limits, apk::Phase::kDecode, a.slot);
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t count = load_count(a, 0);
    binding = &p_.bindings[index * p_.layers + a.layer];
    head = load_head(binding);
    // The rest of the warp takes it from lane 0, so that it is not left out.
    const uint64_t ready =
        lane == 0 ? Memory::load(&p_.slots[index].ready, apk::Acquire{}, apk::SystemScope{}) : 0;
    const uint32_t epoch = static_cast<uint32_t>(__shfl_sync(kAll, ready, 0) >> 32);
    const int32_t ahead = static_cast<int32_t>(static_cast<uint32_t>(count >> 32) - a.epoch);
    if (__any_sync(kAll, ahead != 0) || epoch != a.epoch) {
      // Words of a later operation: the announced one is over.
      return __any_sync(kAll, ahead > 0) || apk::is_earlier(a.epoch, epoch) ? OwnTile::kNone
                                                                            : OwnTile::kNotYet;
    }
    const uint32_t rows = static_cast<uint32_t>(count);
    if (entry_.experts > 32 || __any_sync(kAll, rows > most_rows)) return place(a);
    // A row block for each expert with rows: no sums, no divisions.
    const uint32_t present = __ballot_sync(kAll, rows > 0);
    const bool mine = rows > 0 && __popc(present & ((1u << lane) - 1)) == entry_.row_block;
    const uint32_t holder = __ballot_sync(kAll, mine);
    if (holder == 0) return OwnTile::kNone;
    const uint32_t expert = static_cast<uint32_t>(__ffs(static_cast<int>(holder))) - 1;
    tile = apk::announced_tile(a, __popc(present));
    tile.expert = static_cast<uint16_t>(expert);
    tile.row_block = entry_.row_block;
    tile.row_count = __shfl_sync(kAll, rows, expert);
    tile.column_tile = entry_.column_tile;
    return OwnTile::kTile;
  }

  // What find() found.
  apk::TileDescriptor tile;
  const GemmBinding* binding = nullptr;
  BindingHead head;

 private:
  static constexpr uint32_t kAll = 0xffffffff;

  // The counts of experts first .. first + 31, a lane each.
  __device__ __forceinline__ uint64_t load_count(const apk::Announcement& a, uint32_t first) const {
    const uint32_t expert = first + threadIdx.x % 32;
    if (expert >= entry_.experts) return uint64_t{a.epoch} << 32;
    const ApkSlot& box = p_.slots[apk_slot_index(p_.limits, apk::Phase::kDecode, a.slot)];
    return Memory::load(&box.rows_per_expert[expert], apk::Relaxed{}, apk::SystemScope{});
  }

  // The general case: sums over the experts, lanes side by side. Also none where the agent is about
  // to refuse the request.
  __device__ __forceinline__ OwnTile place(const apk::Announcement& a) {
    const apk::OperationTemplate& shape = *apk::StorageLayout(p_.limits).operation_template(
        p_.scheduler, apk::Phase::kDecode, a.slot);
    const uint32_t experts = shape.experts, height = shape.gate_up.rows;
    const uint32_t columns = shape.gate_up_columns();
    const uint32_t lane = threadIdx.x % 32;
    uint32_t total = 0, expert = 0;
    apk::ExpertRows found;
    bool here = false;
#pragma unroll 1
    for (uint32_t first = 0; first < experts; first += 32) {
      const uint64_t count = load_count(a, first);
      if (__any_sync(kAll, static_cast<uint32_t>(count >> 32) != a.epoch)) return OwnTile::kNotYet;
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
