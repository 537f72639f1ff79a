// An announcement: how a decode operation reaches every cluster before the agent has built
// anything. Each cluster below a number owns the GateUp tile of its own number and needs no claim
// for it; what is left is claimed as always, from the first tile that nobody owns. A cluster looks
// at the slot's ready word, its counts and its offer side by side: one round trip, an acquire of
// the ready word for the rows, and its first load is on the way.
//
// Of an operation of the resident pipeline every cluster owns its tile, whatever else is in flight.
// The main pipelines are shared by the phases, so the deciding agent says how many clusters decode
// gets, and it says so one operation ahead: the slot's *offer* word. When it sees operation e of a
// slot ready it offers e + 1, by the policy and the footprint that it knows then; what has been
// offered stands. A change of policy so reaches a slot one operation later than its claims.
//
// Only for decode operations of one GEMM: tiles that depend on others need the agent's publication.
// An operation cannot finish before every owned tile is committed, so no sender writes its slot
// again before all have taken theirs; but it may finish before the agent has seen it.
#pragma once

#include <cstdint>

#include "apk/operation.h"
#include "apk/tile_order.h"
#include "base/host_device.h"

namespace expertplex::apk {

// Offer word: {epoch:32, clusters + 1:16, clusters of the next epoch + 1:16}; 0: nothing is offered
// yet. One for each decode slot whose template is announced. Writer: the agent, relaxed, device
// scope; reader: pipeline leaders, relaxed. Orders nothing: who takes a tile by it acquires the
// operation's ready word itself.
EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_offer(uint32_t epoch, uint32_t clusters,
                                                     uint32_t next_clusters) {
  return uint64_t{epoch} << 32 | uint64_t{clusters + 1} << 16 | (next_clusters + 1);
}

constexpr uint32_t kNotOffered = ~uint32_t{0};

// How many clusters own a tile of operation `epoch`, whose ready word was seen. kNotOffered: the
// agent has not said so yet, look again. 0: none, or it is over: the agent has seen a later one.
EXPERTPLEX_HOST_DEVICE constexpr uint32_t offered_clusters(uint64_t offer, uint32_t epoch) {
  const int32_t ahead = static_cast<int32_t>(epoch - static_cast<uint32_t>(offer >> 32));
  if (ahead < 0) return 0;
  if (ahead > 1) return kNotOffered;
  return (static_cast<uint32_t>(offer) >> (ahead == 0 ? 16 : 0) & 0xFFFF) - 1;
}

// The offer when operation `epoch` has been seen ready: `clusters` for the next one, and for this
// one too where nothing had been said of it.
EXPERTPLEX_HOST_DEVICE constexpr uint64_t next_offer(uint64_t offer, uint32_t epoch,
                                                     uint32_t clusters) {
  const uint32_t said = offered_clusters(offer, epoch);
  return pack_offer(epoch, said == kNotOffered ? clusters : said, clusters);
}

// An operation of which a cluster may own a tile. Always decode.
struct Announcement {
  uint32_t epoch = 0;
  uint32_t layer = 0;
  uint32_t slot = 0;
};

// One of its GateUp tiles, all but where it lies in its expert (place_in_expert).
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
