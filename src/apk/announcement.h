// An announcement: how a decode operation reaches every cluster before the agent has built
// anything. Each cluster below `clusters` owns the GateUp tile of its own number and needs no claim
// for it; what is left is claimed as always, from tile `clusters` on. It then costs one round of
// loads to the first load of a tile (the senders' counts, which carry the epoch; an acquire of the
// ready word, for the rows).
//
// Of an operation of the resident pipeline the ready word itself is the announcement: every cluster
// owns its tile, whatever else is in flight, so each looks at the senders' words and needs nobody.
// For the main pipelines, which the phases share, the deciding agent says how many clusters decode
// gets: the word below, which it writes the moment it sees the operation ready.
//
// Only for decode operations of one GEMM: tiles that depend on others need the agent's publication.
// An operation cannot finish before every announced tile is committed, so no sender writes its slot
// again before all have taken theirs; but it may finish before the agent has seen it. The agent
// announces one only while the main pipelines have no other decode operation in flight, so its word
// is never overwritten before it has been taken by all that have a tile, and clusters take them in
// order.
#pragma once

#include <cstdint>

#include "apk/operation.h"
#include "apk/tile_order.h"
#include "base/host_device.h"

namespace expertplex::apk {

// Always of a decode operation.
struct Announcement {
  uint32_t epoch = 0;
  uint32_t layer = 0;     // below 2^16
  uint32_t slot = 0;      // below 2^6
  uint32_t clusters = 0;  // [0, clusters) have a tile of their own; below 2^10

  friend EXPERTPLEX_HOST_DEVICE constexpr bool operator==(const Announcement& a,
                                                          const Announcement& b) {
    return a.epoch == b.epoch && a.layer == b.layer && a.slot == b.slot && a.clusters == b.clusters;
  }
};

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_announcement(const Announcement& a) {
  return uint64_t{a.epoch} << 32 | a.layer << 16 | a.slot << 10 | a.clusters;
}

EXPERTPLEX_HOST_DEVICE constexpr Announcement unpack_announcement(uint64_t word) {
  const uint32_t low = static_cast<uint32_t>(word);
  return {static_cast<uint32_t>(word >> 32), low >> 16, low >> 10 & 0x3F, low & 0x3FF};
}

// GateUp tile `index` of an announced operation, all but where it lies in its expert
// (place_in_expert).
EXPERTPLEX_HOST_DEVICE constexpr TileDescriptor announced_tile(const Announcement& a,
                                                               uint32_t row_blocks) {
  TileDescriptor tile;
  tile.epoch = a.epoch;
  tile.phase = Phase::kDecode;
  tile.slot = static_cast<uint8_t>(a.slot);
  tile.layer = static_cast<uint16_t>(a.layer);
  tile.row_blocks = row_blocks;
  return tile;
}

}  // namespace expertplex::apk
