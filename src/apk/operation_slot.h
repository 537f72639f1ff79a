// One operation slot: the words through which the tiles of the operation in it are claimed and
// committed. Claims and commits are a bounded number of atomic operations; nobody ever waits.
//
// Dependencies are claim words that open late (claim_word.h):
//   GateUp  opens at submit;
//   Down of row block b opens when all GateUp column tiles of b are committed;
//   Reduce  opens when all Down tiles are committed (a token's rows lie in any expert).
// An operation without Down (OperationTemplate::hidden == 0) ends with its last GateUp tile.
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

// All device scope. Zero-initialised memory is a free slot.
struct alignas(64) OperationWords {
  // Claim words (claim_word.h). Opened by the agent (publish) with release; claimed by pipeline
  // leaders with acquire. What becomes visible: fields and blocks of this operation.
  uint64_t gate_up_claim = 0;
  // Opened with release by the committer of the last Down tile, or by the agent where no expert has
  // rows; what becomes visible besides: all Down outputs. An operation without reduction has it
  // exhausted from the start.
  uint64_t reduce_claim = 0;
  // {epoch:32, row blocks:16, cursor:16}; cursor: the first row block that may have unclaimed Down
  // tiles. Set by the agent at publish, relaxed; claimers and the agent move the cursor past
  // exhausted row blocks with one compare-exchange, relaxed, and do not mind losing it. Orders
  // nothing: the words of down_claim say themselves what they hold.
  uint64_t down_progress = 0;

  // Tiles committed. Writers: committers, acquire-release: the last one sees all outputs of the
  // stage and hands them on with the word that it opens, or to the caller that publishes the done
  // word. Without Down it counts GateUp tiles. It also sets the counter back to 0, relaxed:
  // everybody else is through.
  alignas(64) uint32_t down_committed = 0;
  uint32_t reduce_committed = 0;
  // Epoch of the latest operation that finished. Writer: the finisher in retire, release (the agent
  // for an operation without tiles); reader: the agent, acquire: every read of the fields has
  // happened before they are written again.
  uint32_t finished = 0;
};

// Where one slot lies: pointers into the scheduler's storage.
struct SlotView {
  const OperationTemplate* shape = nullptr;  // fixed before the threads start
  OperationFields* fields = nullptr;
  RowBlock* blocks = nullptr;
  OperationWords* words = nullptr;
  // Per row block: GateUp tiles committed; as down_committed.
  uint32_t* gate_up_committed = nullptr;
  // Per row block: claim word of its Down tiles, opened with release by the committer of the row
  // block's last GateUp tile. What becomes visible: the row block's GateUp outputs.
  uint64_t* down_claim = nullptr;

  EXPERTPLEX_HOST_DEVICE OperationView view() const { return {shape, fields, blocks}; }
};

// Epochs of a slot grow, and may wrap around.
EXPERTPLEX_HOST_DEVICE constexpr bool is_earlier(uint32_t epoch, uint32_t than) {
  return static_cast<int32_t>(epoch - than) < 0;
}

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_epoch_value(uint32_t epoch, uint32_t value) {
  return uint64_t{epoch} << 32 | value;
}

namespace detail {

// OperationWords::down_progress, unpacked.
struct DownProgress {
  uint32_t epoch = 0;
  uint32_t row_blocks = 0;
  uint32_t cursor = 0;
};

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_down_progress(const DownProgress& p) {
  return uint64_t{p.epoch} << 32 | p.row_blocks << 16 | p.cursor;
}

EXPERTPLEX_HOST_DEVICE constexpr DownProgress unpack_down_progress(uint64_t word) {
  const uint32_t low = static_cast<uint32_t>(word);
  return {static_cast<uint32_t>(word >> 32), low >> 16, low & 0xFFFF};
}

// Row blocks that one look covers: [cursor, end).
EXPERTPLEX_HOST_DEVICE constexpr uint32_t scan_end(const OperationTemplate& shape,
                                                   const DownProgress& seen) {
  return min_u32(seen.row_blocks, seen.cursor + shape.down_scan_window);
}

// Moves by half a window or more, so that not every row block costs a compare-exchange.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE void move_cursor(const SlotView& slot, const DownProgress& seen,
                                        uint32_t cursor) {
  if (cursor == seen.cursor || (cursor - seen.cursor) * 2 < slot.shape->down_scan_window) return;
  const DownProgress moved{seen.epoch, seen.row_blocks, cursor};
  Mem::compare_exchange(&slot.words->down_progress, pack_down_progress(seen),
                        pack_down_progress(moved), Relaxed{}, DeviceScope{});
}

template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool claim_down_tile(const SlotView& slot, TileDescriptor* tile) {
  const DownProgress seen =
      unpack_down_progress(Mem::load(&slot.words->down_progress, Relaxed{}, DeviceScope{}));
  const uint32_t end = scan_end(*slot.shape, seen);
  uint32_t first_live = seen.cursor;
  ClaimTicket ticket;
  uint32_t block = seen.cursor;
  for (; block < end; ++block) {
    const uint64_t word = Mem::load(&slot.down_claim[block], Relaxed{}, DeviceScope{});
    ticket = try_claim_seen<Mem>(&slot.down_claim[block], word);
    if (ticket.remaining > 0) break;
    const bool exhausted = claim_epoch(word) == seen.epoch;
    if (exhausted && first_live == block) first_live = block + 1;
  }
  move_cursor<Mem>(slot, seen, first_live);
  if (ticket.remaining == 0) return false;
  const uint32_t column = slot.shape->down_columns() - ticket.remaining;
  // A claimer that was delayed may have got a tile of a newer operation.
  const uint32_t row_blocks =
      ticket.epoch == seen.epoch ? seen.row_blocks : Mem::read(slot.fields).row_blocks;
  *tile = down_tile<Mem>(slot.view(), ticket.epoch, row_blocks, block, column);
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

// Agent: makes the instantiated operation claimable, all but the `announced` first GateUp tiles
// (announcement.h). REQUIRES: it has tiles; the slot is free.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE void publish_operation(const SlotView& slot, uint32_t announced) {
  const OperationFields f = Mem::read(slot.fields);
  OperationWords& words = *slot.words;
  const uint32_t cursor = f.down_tiles > 0 ? 0 : f.row_blocks;
  Mem::store(&words.down_progress, detail::pack_down_progress({f.epoch, f.row_blocks, cursor}),
             Relaxed{}, DeviceScope{});
  if (f.reduce_tiles == 0) {
    Mem::store(&words.reduce_claim, pack_claim_word(f.epoch, 0), Relaxed{}, DeviceScope{});
  }
  if (f.gate_up_tiles > 0) {
    detail::open_claim<Mem>(&words.gate_up_claim, f.epoch,
                            f.gate_up_tiles - detail::min_u32(announced, f.gate_up_tiles));
  } else {
    detail::open_claim<Mem>(&words.reduce_claim, f.epoch, f.reduce_tiles);
  }
}

// Takes the next tile whose dependencies are committed; false: there is none now. `left`: GateUp
// tiles that the caller may take to be there without a look (0: it looks); then those behind the
// tile that it got.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE bool claim_tile(const SlotView& slot, TileDescriptor* tile, uint32_t* left) {
  OperationWords& words = *slot.words;
  ClaimTicket ticket =
      *left > 0 ? claim_unseen<Mem>(&words.gate_up_claim) : try_claim<Mem>(&words.gate_up_claim);
  *left = 0;
  if (ticket.remaining > 0) {
    *left = ticket.remaining - 1;
    *tile = gate_up_tile<Mem>(slot.view(), ticket.epoch, ticket.remaining);
    return true;
  }
  if (detail::claim_down_tile<Mem>(slot, tile)) return true;
  if (slot.shape->reduce_tokens == 0) return false;
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
  const OperationTemplate& shape = *slot.shape;
  // The fields are not read where tile and template say it all: who runs an announced tile has
  // acquired nothing from the agent.
  const uint32_t parts = shape.commits_per_tile;
  const uint32_t gate_up = shape.gate_up_columns() * parts, down = shape.down_columns();
  switch (tile.kind) {
    case TileKind::kGateUp:
      if (down == 0) {
        return detail::commit_one<Mem>(&words.down_committed, tile.row_blocks * gate_up);
      }
      if (detail::commit_one<Mem>(&slot.gate_up_committed[tile.row_block], gate_up)) {
        detail::open_claim<Mem>(&slot.down_claim[tile.row_block], tile.epoch, down);
      }
      return false;
    case TileKind::kDown: {
      const uint32_t all = tile.row_blocks * down * parts;
      if (!detail::commit_one<Mem>(&words.down_committed, all)) return false;
      if (shape.reduce_tokens == 0) return true;
      const uint32_t tiles = Mem::read(slot.fields).reduce_tiles;
      if (tiles == 0) return true;
      detail::open_claim<Mem>(&words.reduce_claim, tile.epoch, tiles);
      return false;
    }
    case TileKind::kReduce:
      break;
  }
  return detail::commit_one<Mem>(&words.reduce_committed,
                                 Mem::read(slot.fields).reduce_tiles * parts);
}

// Finisher only, once, after its last read of the fields.
template <typename Mem, typename O>
EXPERTPLEX_HOST_DEVICE void retire_operation(const SlotView& slot, uint32_t epoch, O order) {
  Mem::store(&slot.words->finished, epoch, order, DeviceScope{});
}

// Whether the operation in the slot may have tiles that nobody has claimed (claimable now or not),
// and its row blocks. Moves the cursor on. May say true a few looks too long, never false too
// early.
struct UnclaimedTiles {
  bool any = false;
  uint32_t epoch = 0;
  uint32_t row_blocks = 0;
};

template <typename Mem>
EXPERTPLEX_HOST_DEVICE UnclaimedTiles find_unclaimed_tiles(const SlotView& slot) {
  OperationWords& words = *slot.words;
  const detail::DownProgress seen =
      detail::unpack_down_progress(Mem::load(&words.down_progress, Relaxed{}, DeviceScope{}));
  UnclaimedTiles found{true, seen.epoch, seen.row_blocks};
  const uint64_t gate_up = Mem::load(&words.gate_up_claim, Relaxed{}, DeviceScope{});
  if (claim_remaining(gate_up) > 0) return found;
  uint32_t live = seen.cursor;
  const uint32_t end = detail::scan_end(*slot.shape, seen);
  for (; live < end; ++live) {
    const uint64_t word = Mem::load(&slot.down_claim[live], Relaxed{}, DeviceScope{});
    if (claim_epoch(word) != seen.epoch || claim_remaining(word) > 0) break;
  }
  detail::move_cursor<Mem>(slot, seen, live);
  if (live < seen.row_blocks) return found;
  found.any = false;
  if (slot.shape->reduce_tokens == 0) return found;
  const uint64_t reduce = Mem::load(&words.reduce_claim, Relaxed{}, DeviceScope{});
  found.any = claim_epoch(reduce) != seen.epoch || claim_remaining(reduce) > 0;
  return found;
}

}  // namespace expertplex::apk
