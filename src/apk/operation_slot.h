// One operation slot: the words through which the tiles of the operation in it are claimed and
// committed. Claims and commits are a bounded number of atomic operations; nobody ever waits.
//
// Dependencies are claim words that open late (claim_word.h):
//   GateUp  opens at submit;
//   Down of row block b opens when all GateUp column tiles of b are committed;
//   Reduce  opens when all Down tiles are committed (a token's rows lie in any expert).
// The last committer of a stage opens the next one, and exactly one committer finishes the
// operation.
//
// Life of a slot: free -> (agent) instantiate, publish -> tiles -> (who was told by commit_tile
// that it finished) retire -> free. A slot may be published again only after it was retired, with
// another epoch; no word is reset in flight.
#pragma once

#include <cstdint>

#include "apk/claim_word.h"
#include "apk/memory.h"
#include "apk/operation.h"
#include "apk/tile_order.h"
#include "base/host_device.h"

namespace expertplex::apk {

// Claimers look at this many row blocks from the cursor on: their loads are independent, so on the
// GPU they overlap.
constexpr uint32_t kDownScanWindow = 8;

// All device scope. Zero-initialised memory is a free slot.
struct alignas(64) OperationWords {
  // Claim words (claim_word.h). Opened by the agent (publish) with release; claimed by pipeline
  // leaders with acquire. What becomes visible: fields, experts, block_expert of this operation.
  uint64_t gate_up_claim = 0;
  // Opened with release by the committer of the last Down tile, or by the agent where no expert has
  // rows; what becomes visible besides: all Down outputs. An operation without reduction has it
  // exhausted from the start.
  uint64_t reduce_claim = 0;
  // {epoch, row blocks}. Writer: agent at publish, relaxed; readers: claimers, relaxed. A stale
  // value only misdirects a look at down_claim, whose words say themselves what they hold.
  uint64_t down_span = 0;
  // {epoch, first row block that may have unclaimed Down tiles}: a hint, relaxed both ways.
  // Claimers move it past exhausted blocks; of another epoch it reads as 0; moved back by a late
  // writer it costs a look, nothing else.
  uint64_t down_cursor = 0;

  // Tiles committed. Writers: committers, acquire-release: the last one sees all outputs of the
  // stage and hands them on with the word that it opens, or to the caller that publishes the done
  // word. It also sets the counter back to 0, relaxed: everybody else is through.
  alignas(64) uint32_t down_committed = 0;
  uint32_t reduce_committed = 0;
  // {epoch, 1 in flight | 0 free}. Set by the agent at publish, relaxed (only the agent cares);
  // cleared by the finisher in retire, release; read by the agent, acquire: every read of the
  // fields has happened before they are written again.
  uint64_t state = 0;
};

// Where one slot lies: pointers into the scheduler's storage.
struct SlotView {
  const OperationTemplate* shape = nullptr;  // fixed before the threads start
  OperationFields* fields = nullptr;
  ExpertRows* experts = nullptr;
  uint16_t* block_expert = nullptr;
  OperationWords* words = nullptr;
  // Per row block: GateUp tiles committed; as down_committed.
  uint32_t* gate_up_committed = nullptr;
  // Per row block: claim word of its Down tiles, opened with release by the committer of the row
  // block's last GateUp tile. What becomes visible: the row block's GateUp outputs.
  uint64_t* down_claim = nullptr;

  EXPERTPLEX_HOST_DEVICE OperationView view() const {
    return {shape, fields, experts, block_expert};
  }
};

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_epoch_value(uint32_t epoch, uint32_t value) {
  return uint64_t{epoch} << 32 | value;
}

namespace detail {

// A look at the row blocks from the cursor on.
struct DownScan {
  uint32_t epoch = 0;
  uint32_t row_blocks = 0;
  uint32_t cursor = 0;
};

template <typename Mem>
EXPERTPLEX_HOST_DEVICE DownScan start_down_scan(const SlotView& slot) {
  const uint64_t span = Mem::load(&slot.words->down_span, Relaxed{}, DeviceScope{});
  const uint64_t cursor = Mem::load(&slot.words->down_cursor, Relaxed{}, DeviceScope{});
  DownScan scan;
  scan.epoch = static_cast<uint32_t>(span >> 32);
  scan.row_blocks = static_cast<uint32_t>(span);
  if (static_cast<uint32_t>(cursor >> 32) == scan.epoch)
    scan.cursor = static_cast<uint32_t>(cursor);
  return scan;
}

template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool claim_down_tile(const SlotView& slot, TileDescriptor* tile) {
  const DownScan scan = start_down_scan<Mem>(slot);
  const uint32_t end = detail::min_u32(scan.row_blocks, scan.cursor + kDownScanWindow);
  uint32_t first_live = scan.cursor;
  ClaimTicket ticket;
  uint32_t block = scan.cursor;
  for (; block < end; ++block) {
    const uint64_t seen = Mem::load(&slot.down_claim[block], Relaxed{}, DeviceScope{});
    ticket = try_claim_seen<Mem>(&slot.down_claim[block], seen);
    if (ticket.remaining > 0) break;
    const bool exhausted = claim_epoch(seen) == scan.epoch;
    if (exhausted && first_live == block) first_live = block + 1;
  }
  if (first_live != scan.cursor) {
    Mem::store(&slot.words->down_cursor, pack_epoch_value(scan.epoch, first_live), Relaxed{},
               DeviceScope{});
  }
  if (ticket.remaining == 0) return false;
  const uint32_t column = slot.shape->down_columns() - ticket.remaining;
  *tile = down_tile<Mem>(slot.view(), Mem::read(slot.fields), block, column);
  return true;
}

template <typename Mem>
EXPERTPLEX_HOST_DEVICE void open_claim(uint64_t* word, uint32_t epoch, uint32_t tiles) {
  Mem::store(word, pack_claim_word(epoch, tiles), Release{}, DeviceScope{});
}

// Adds one to a commit counter; true for the one who completes it, who also sets it back.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool commit_one(uint32_t* counter, uint32_t total) {
  if (Mem::fetch_add(counter, uint32_t{1}, AcquireRelease{}, DeviceScope{}) + 1 != total) {
    return false;
  }
  Mem::store(counter, uint32_t{0}, Relaxed{}, DeviceScope{});
  return true;
}

}  // namespace detail

// Agent: makes the instantiated operation claimable. False: it has no tiles, nothing was published,
// the slot stays free and the operation is done as it stands.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool publish_operation(const SlotView& slot) {
  const OperationFields f = Mem::read(slot.fields);
  if (f.tiles() == 0) return false;
  OperationWords& words = *slot.words;
  Mem::store(&words.state, pack_epoch_value(f.epoch, 1), Relaxed{}, DeviceScope{});
  Mem::store(&words.down_span, pack_epoch_value(f.epoch, f.row_blocks), Relaxed{}, DeviceScope{});
  if (f.reduce_tiles == 0) {
    Mem::store(&words.reduce_claim, pack_claim_word(f.epoch, 0), Relaxed{}, DeviceScope{});
  }
  if (f.gate_up_tiles > 0) {
    detail::open_claim<Mem>(&words.gate_up_claim, f.epoch, f.gate_up_tiles);
  } else {
    detail::open_claim<Mem>(&words.reduce_claim, f.epoch, f.reduce_tiles);
  }
  return true;
}

// Takes the next tile whose dependencies are committed; false: there is none now.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool claim_tile(const SlotView& slot, TileDescriptor* tile) {
  OperationWords& words = *slot.words;
  ClaimTicket ticket = try_claim<Mem>(&words.gate_up_claim);
  if (ticket.remaining > 0) {
    const OperationFields f = Mem::read(slot.fields);
    *tile = gate_up_tile<Mem>(slot.view(), f, f.gate_up_tiles - ticket.remaining);
    return true;
  }
  if (detail::claim_down_tile<Mem>(slot, tile)) return true;
  ticket = try_claim<Mem>(&words.reduce_claim);
  if (ticket.remaining == 0) return false;
  const OperationFields f = Mem::read(slot.fields);
  *tile = reduce_tile(*slot.shape, f, f.reduce_tiles - ticket.remaining);
  return true;
}

// Publishes a computed tile, or one member's part of it (OperationTemplate::commits_per_tile). The
// caller has written the outputs with plain (or TMA, completed and fenced) stores. True for exactly
// one caller per operation: all tiles are committed and all outputs
// visible to it; it publishes the done word and retires the slot.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool commit_tile(const SlotView& slot, const TileDescriptor& tile) {
  OperationWords& words = *slot.words;
  const OperationFields f = Mem::read(slot.fields);
  const uint32_t parts = slot.shape->commits_per_tile;
  switch (tile.kind) {
    case TileKind::kGateUp:
      if (detail::commit_one<Mem>(&slot.gate_up_committed[tile.row_block],
                                  slot.shape->gate_up_columns() * parts)) {
        detail::open_claim<Mem>(&slot.down_claim[tile.row_block], f.epoch,
                                slot.shape->down_columns());
      }
      return false;
    case TileKind::kDown:
      if (!detail::commit_one<Mem>(&words.down_committed, f.down_tiles * parts)) return false;
      if (f.reduce_tiles == 0) return true;
      detail::open_claim<Mem>(&words.reduce_claim, f.epoch, f.reduce_tiles);
      return false;
    case TileKind::kReduce:
      break;
  }
  return detail::commit_one<Mem>(&words.reduce_committed, f.reduce_tiles * parts);
}

// Finisher only, once, after its last read of the fields.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE void retire_operation(const SlotView& slot, uint32_t epoch) {
  Mem::store(&slot.words->state, pack_epoch_value(epoch, 0), Release{}, DeviceScope{});
}

// True while the operation with this epoch may have tiles that nobody has claimed (whether or not
// they are claimable now). Moves the cursor on. May say true a few looks too long, never false too
// early.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool has_unclaimed_tiles(const SlotView& slot, uint32_t epoch) {
  OperationWords& words = *slot.words;
  const detail::DownScan scan = detail::start_down_scan<Mem>(slot);
  if (scan.epoch != epoch) return false;
  if (claim_remaining(Mem::load(&words.gate_up_claim, Relaxed{}, DeviceScope{})) > 0) return true;
  uint32_t live = scan.cursor;
  const uint32_t end = detail::min_u32(scan.row_blocks, scan.cursor + kDownScanWindow);
  while (live < end) {
    const uint64_t word = Mem::load(&slot.down_claim[live], Relaxed{}, DeviceScope{});
    if (claim_epoch(word) != epoch || claim_remaining(word) > 0) break;
    ++live;
  }
  if (live != scan.cursor) {
    Mem::store(&words.down_cursor, pack_epoch_value(epoch, live), Relaxed{}, DeviceScope{});
  }
  if (live < scan.row_blocks) return true;
  const uint64_t reduce = Mem::load(&words.reduce_claim, Relaxed{}, DeviceScope{});
  return claim_epoch(reduce) != epoch || claim_remaining(reduce) > 0;
}

}  // namespace expertplex::apk
