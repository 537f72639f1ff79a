// The order of an operation's tiles as a pure function: index -> tile.
//
//   GateUp tiles [0, R * Cg), then Down tiles [.., R * Cd), then Reduce tiles (prefill only)
//
// with R the row blocks (expert, row tile) of experts that have rows, Cg and Cd the column tiles.
// An expert without rows has no tiles.
//
// GateUp: experts ascending; within an expert, groups of `row_group` row tiles; within a group,
// columns outside, rows inside. So the strip of weights of one column tile is used by the whole
// group while it is hot (CPU: a core's cache; GPU: tiles in flight share it in L2), an expert's
// weights are read once per group, and the row blocks of a group finish together. One group
// (row_group >= row tiles) reads each weight once; row_group = 1 finishes row blocks earliest.
//
// Down: row block by row block in ascending order, columns inside, because a row block is what
// becomes ready. Neighbouring row blocks belong to one expert, whose weights stay in L2.
//
// Tile order is the order of claims; what a tile computes does not depend on it.
//
// A claim word counts tiles from the end, and so does the array of row blocks: who gets a GateUp
// tile needs one load of 16 bytes to know it, and nothing of the operation's fields.
#pragma once

#include <cstdint>

#include "apk/operation.h"
#include "base/host_device.h"

namespace expertplex::apk {

struct OperationView {
  const OperationTemplate* shape = nullptr;
  const OperationFields* fields = nullptr;
  const RowBlock* blocks = nullptr;  // fields->row_blocks entries, the last row block first
};

// Fills fields and blocks from a request. Returns the fault, and then has written nothing that may
// be used. There is room for shape.max_row_blocks.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE OperationFault instantiate_operation(const OperationTemplate& shape,
                                                            const OperationRequest& request,
                                                            OperationFields* fields,
                                                            RowBlock* blocks) {
  uint64_t row_blocks = 0;
  for (uint32_t e = 0; e < shape.experts; ++e) {
    row_blocks += ceil_div(request.rows_per_expert[e], shape.gate_up.rows);
  }
  if (row_blocks > shape.max_row_blocks) return OperationFault::kTooManyRowBlocks;
  const bool reduces = shape.reduce_tokens > 0;
  if (reduces && request.tokens > shape.max_tokens) return OperationFault::kTooManyTokens;

  uint32_t next_block = 0;
  for (uint32_t e = 0; e < shape.experts; ++e) {
    const ExpertRows rows{request.rows_per_expert[e], next_block};
    const RowBlock block{rows, static_cast<uint32_t>(row_blocks), static_cast<uint16_t>(e),
                         static_cast<uint16_t>(request.layer)};
    const uint32_t end = next_block + ceil_div(rows.rows, shape.gate_up.rows);
    for (; next_block < end; ++next_block) {
      Mem::write(&blocks[row_blocks - 1 - next_block], block);
    }
  }
  OperationFields f;
  f.epoch = request.epoch;
  f.layer = request.layer;
  f.participant_mask = request.participant_mask;
  f.tokens = reduces ? request.tokens : 0;
  f.row_blocks = next_block;
  f.gate_up_tiles = next_block * shape.gate_up_columns();
  f.down_tiles = next_block * shape.down_columns();
  f.reduce_tiles = reduces ? ceil_div(request.tokens, shape.reduce_tokens) : 0;
  Mem::write(fields, f);
  return OperationFault::kNone;
}

namespace detail {

EXPERTPLEX_HOST_DEVICE constexpr uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

EXPERTPLEX_HOST_DEVICE constexpr TileDescriptor tile_of(const OperationTemplate& shape,
                                                        uint32_t epoch, uint32_t layer,
                                                        uint32_t row_blocks, TileKind kind) {
  TileDescriptor tile;
  tile.epoch = epoch;
  tile.phase = shape.phase;
  tile.kind = kind;
  tile.slot = shape.slot;
  tile.layer = static_cast<uint16_t>(layer);
  tile.row_blocks = row_blocks;
  return tile;
}

}  // namespace detail

// Puts tile `index` of GateUp into `tile`, given the expert that it belongs to: the tiles of an
// expert are those from rows.first_block * columns on.
EXPERTPLEX_HOST_DEVICE constexpr void place_in_expert(const OperationTemplate& shape,
                                                      uint32_t expert, const ExpertRows& rows,
                                                      uint32_t index, TileDescriptor* tile) {
  const uint32_t columns = shape.gate_up_columns();
  const uint32_t row_tiles = ceil_div(rows.rows, shape.gate_up.rows);
  const uint32_t local = index - rows.first_block * columns;
  const uint32_t group_first = local / columns / shape.row_group * shape.row_group;
  const uint32_t in_group = local - group_first * columns;
  const uint32_t group_rows = detail::min_u32(shape.row_group, row_tiles - group_first);
  const uint32_t row_tile = group_first + in_group % group_rows;
  tile->expert = static_cast<uint16_t>(expert);
  tile->row_block = rows.first_block + row_tile;
  tile->first_row = row_tile * shape.gate_up.rows;
  tile->row_count = detail::min_u32(shape.gate_up.rows, rows.rows - tile->first_row);
  tile->column_tile = static_cast<uint16_t>(in_group / group_rows);
}

// The GateUp tile that is `from_end`-th from the end. REQUIRES: 1 <= from_end <= gate_up_tiles.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor gate_up_tile(const OperationView& op, uint32_t epoch,
                                                   uint32_t from_end) {
  const OperationTemplate& shape = *op.shape;
  const uint32_t columns = shape.gate_up_columns();
  // The tiles of an expert start at first_block * columns, so this is a row block of the right
  // expert, whatever the order inside it.
  const RowBlock block = Mem::read(&op.blocks[(from_end - 1) / columns]);
  TileDescriptor tile =
      detail::tile_of(shape, epoch, block.layer, block.row_blocks, TileKind::kGateUp);
  place_in_expert(shape, block.expert, block.of_expert, block.row_blocks * columns - from_end,
                  &tile);
  return tile;
}

// REQUIRES: row_block < row_blocks, those of the operation; column_tile < shape.down_columns().
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor down_tile(const OperationView& op, uint32_t epoch,
                                                uint32_t row_blocks, uint32_t row_block,
                                                uint32_t column_tile) {
  const OperationTemplate& shape = *op.shape;
  const RowBlock block = Mem::read(&op.blocks[row_blocks - 1 - row_block]);
  TileDescriptor tile = detail::tile_of(shape, epoch, block.layer, row_blocks, TileKind::kDown);
  tile.expert = block.expert;
  tile.row_block = row_block;
  tile.first_row = (row_block - block.of_expert.first_block) * shape.down.rows;
  tile.row_count = detail::min_u32(shape.down.rows, block.of_expert.rows - tile.first_row);
  tile.column_tile = static_cast<uint16_t>(column_tile);
  return tile;
}

// REQUIRES: index < fields.reduce_tiles.
EXPERTPLEX_HOST_DEVICE constexpr TileDescriptor reduce_tile(const OperationTemplate& shape,
                                                            const OperationFields& fields,
                                                            uint32_t index) {
  TileDescriptor tile =
      detail::tile_of(shape, fields.epoch, fields.layer, fields.row_blocks, TileKind::kReduce);
  tile.row_block = index;
  tile.first_row = index * shape.reduce_tokens;
  tile.row_count = detail::min_u32(shape.reduce_tokens, fields.tokens - tile.first_row);
  return tile;
}

// The whole order. REQUIRES: index < fields.tiles().
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor tile_at(const OperationView& op, uint32_t index) {
  const OperationFields fields = Mem::read(op.fields);
  if (index < fields.gate_up_tiles) {
    return gate_up_tile<Mem>(op, fields.epoch, fields.gate_up_tiles - index);
  }
  index -= fields.gate_up_tiles;
  const uint32_t columns = op.shape->down_columns();
  if (index < fields.down_tiles) {
    return down_tile<Mem>(op, fields.epoch, fields.row_blocks, index / columns, index % columns);
  }
  return reduce_tile(*op.shape, fields, index - fields.down_tiles);
}

}  // namespace expertplex::apk
