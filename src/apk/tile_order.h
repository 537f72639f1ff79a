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
// OperationView reads the arrays through the memory policy, two dependent loads per tile.
#pragma once

#include <cstdint>

#include "apk/operation.h"
#include "base/host_device.h"

namespace expertplex::apk {

struct OperationView {
  const OperationTemplate* shape = nullptr;
  const OperationFields* fields = nullptr;
  const ExpertRows* experts = nullptr;     // shape->experts entries
  const uint16_t* block_expert = nullptr;  // fields->row_blocks entries: which expert
};

// Fills fields, experts and block_expert from a request. Returns the fault, and then has written
// nothing that may be used. The arrays have room for shape.experts and shape.max_row_blocks.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE OperationFault instantiate_operation(const OperationTemplate& shape,
                                                            const OperationRequest& request,
                                                            OperationFields* fields,
                                                            ExpertRows* experts,
                                                            uint16_t* block_expert) {
  uint64_t blocks = 0;
  for (uint32_t e = 0; e < shape.experts; ++e) {
    blocks += ceil_div(request.rows_per_expert[e], shape.gate_up.rows);
  }
  if (blocks > shape.max_row_blocks) return OperationFault::kTooManyRowBlocks;
  const bool reduces = shape.reduce_tokens > 0;
  if (reduces && request.tokens > shape.max_tokens) return OperationFault::kTooManyTokens;

  uint32_t next_block = 0;
  for (uint32_t e = 0; e < shape.experts; ++e) {
    const uint32_t rows = request.rows_per_expert[e];
    Mem::write(&experts[e], ExpertRows{rows, next_block});
    const uint32_t end = next_block + ceil_div(rows, shape.gate_up.rows);
    for (; next_block < end; ++next_block) {
      Mem::write(&block_expert[next_block], static_cast<uint16_t>(e));
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
                                                        const OperationFields& fields,
                                                        TileKind kind) {
  TileDescriptor tile;
  tile.epoch = fields.epoch;
  tile.phase = shape.phase;
  tile.kind = kind;
  tile.slot = shape.slot;
  tile.layer = static_cast<uint16_t>(fields.layer);
  tile.row_blocks = fields.row_blocks;
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

// REQUIRES: index < fields.gate_up_tiles.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor gate_up_tile(const OperationView& op,
                                                   const OperationFields& fields, uint32_t index) {
  const OperationTemplate& shape = *op.shape;
  const uint32_t columns = shape.gate_up_columns();
  // The tiles of an expert start at first_block * columns, so index / columns is a row block of the
  // right expert, whatever the order inside it.
  const uint32_t expert = Mem::read(&op.block_expert[index / columns]);
  TileDescriptor tile = detail::tile_of(shape, fields, TileKind::kGateUp);
  place_in_expert(shape, expert, Mem::read(&op.experts[expert]), index, &tile);
  return tile;
}

// REQUIRES: row_block < fields.row_blocks, column_tile < shape.down_columns().
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor down_tile(const OperationView& op,
                                                const OperationFields& fields, uint32_t row_block,
                                                uint32_t column_tile) {
  const OperationTemplate& shape = *op.shape;
  const uint32_t expert = Mem::read(&op.block_expert[row_block]);
  const ExpertRows rows = Mem::read(&op.experts[expert]);

  TileDescriptor tile = detail::tile_of(shape, fields, TileKind::kDown);
  tile.expert = static_cast<uint16_t>(expert);
  tile.row_block = row_block;
  tile.first_row = (row_block - rows.first_block) * shape.down.rows;
  tile.row_count = detail::min_u32(shape.down.rows, rows.rows - tile.first_row);
  tile.column_tile = static_cast<uint16_t>(column_tile);
  return tile;
}

// REQUIRES: index < fields.reduce_tiles.
EXPERTPLEX_HOST_DEVICE constexpr TileDescriptor reduce_tile(const OperationTemplate& shape,
                                                            const OperationFields& fields,
                                                            uint32_t index) {
  TileDescriptor tile = detail::tile_of(shape, fields, TileKind::kReduce);
  tile.row_block = index;
  tile.first_row = index * shape.reduce_tokens;
  tile.row_count = detail::min_u32(shape.reduce_tokens, fields.tokens - tile.first_row);
  return tile;
}

// The whole order. REQUIRES: index < fields.tiles().
template <typename Mem>
EXPERTPLEX_HOST_DEVICE TileDescriptor tile_at(const OperationView& op, uint32_t index) {
  const OperationFields fields = Mem::read(op.fields);
  if (index < fields.gate_up_tiles) return gate_up_tile<Mem>(op, fields, index);
  index -= fields.gate_up_tiles;
  const uint32_t columns = op.shape->down_columns();
  if (index < fields.down_tiles) {
    return down_tile<Mem>(op, fields, index / columns, index % columns);
  }
  return reduce_tile(*op.shape, fields, index - fields.down_tiles);
}

}  // namespace expertplex::apk
