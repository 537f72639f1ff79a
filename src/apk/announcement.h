// An announcement: how a decode operation reaches every cluster in one word. The deciding agent
// writes it the moment it sees the operation ready, before it has built anything; each cluster
// below `clusters` then owns the GateUp tile of its own number and needs no claim for it. What is
// left is claimed as always, from tile `clusters` on.
//
// So the way from a ready word to the first load is: the agent's look, the clusters' look at this
// word, and one round of loads that the cluster starts at once (the senders' counts, which carry the
// epoch; an acquire of the ready word, for the rows).
//
// Only for decode operations of one GEMM: tiles that depend on others need the agent's publication.
// An operation is announced only while its pipelines have no other operation in flight, and it
// cannot finish before every announced tile is committed. So an announcement is never overwritten
// before it has been taken by all that have a tile, and clusters take them in order.
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
