// An operation is one MoE module execution (one phase, one layer, one microbatch) on one MoE
// server: grouped GEMM 1 (gate and up), SwiGLU and quantisation, grouped GEMM 2 (down), and for
// prefill the reduction (paper, "Before APK starts, ExpertPlex builds an operation template";
// DESIGN section 2).
//
// OperationTemplate is fixed before the kernel starts: one per (phase, slot), a slot being one
// group of senders and one microbatch. OperationRequest is what a ready operation brings. Addresses
// and TMA descriptors are the backend's, found by (phase, slot, layer).
#pragma once

#include <cstdint>

#include "apk/footprint.h"
#include "apk/phase.h"
#include "apk/policy.h"
#include "apk/tile.h"
#include "base/host_device.h"

namespace expertplex::apk {

// Claim words and commit counters count to this with room to spare.
constexpr uint32_t kMaxTilesPerOperation = 1u << 30;

struct TileShape {
  uint32_t rows = 0;
  uint32_t columns = 0;
};

struct OperationTemplate {
  Phase phase = Phase::kPrefill;
  PipelineRole pipeline = PipelineRole::kMain;  // which pipeline computes its tiles
  uint8_t slot = 0;                             // 0 .. SchedulerLimits::slots[phase] - 1
  uint32_t experts = 0;                         // local experts of this server
  uint32_t hidden = 0;        // columns of Down; 0: the operation ends after GateUp
  uint32_t intermediate = 0;  // columns of GateUp, each one gate and one up
  TileShape gate_up;          // rows = M_t
  TileShape down;             // rows must equal gate_up.rows: a row block is the unit of dependency
  uint32_t reduce_tokens = 0;  // tokens of a Reduce tile; 0: this phase has no reduction
  // Row tiles of one expert that are walked together, column by column (tile_order.h).
  uint32_t row_group = 1;
  // Row blocks that a claimer of Down tiles looks at in one go, from the first live one on; their
  // loads are independent, so on the GPU they overlap.
  uint32_t down_scan_window = 8;
  // Commits that make a tile complete: the members of a cluster that each write, and commit, a part
  // of it (no barrier over the cluster at the end of a tile).
  uint32_t commits_per_tile = 1;
  // The agent hands every cluster the first tile together with the operation (announcement.h).
  bool announced = false;
  uint32_t max_row_blocks = 0;  // capacity: sum over experts of ceil(m_e / M_t), at most 65535
  uint32_t max_tokens = 0;      // capacity of the reduction

  EXPERTPLEX_HOST_DEVICE constexpr uint32_t gate_up_columns() const {
    return ceil_div(intermediate, gate_up.columns);
  }
  EXPERTPLEX_HOST_DEVICE constexpr uint32_t down_columns() const {
    return hidden == 0 ? 0 : ceil_div(hidden, down.columns);
  }
};

// Why a template or a request is refused; kNone is fine.
enum class OperationFault : uint8_t {
  kNone,
  kEmptyShape,        // a zero where a size is needed
  kRowsDiffer,        // gate_up.rows != down.rows
  kTooManyExperts,    // more than SchedulerLimits::experts
  kTooManyRowBlocks,  // more than max_row_blocks, or that more than SchedulerLimits::row_blocks
  kTooManyTokens,     // more than max_tokens
  kTooManyTiles,      // a claim word cannot count them
  kDecodeReduces,     // the reduction is prefill's
  kAnnouncedChain,    // announced, with tiles that depend on others, or not decode
  kBadEpoch,          // 0, or that of the slot's operation before
  kNoSuchSlot,        // slot or phase out of range
};

constexpr const char* operation_fault_name(OperationFault fault) {
  switch (fault) {
    case OperationFault::kNone:
      return "none";
    case OperationFault::kEmptyShape:
      return "a size is zero";
    case OperationFault::kRowsDiffer:
      return "gate_up.rows differs from down.rows";
    case OperationFault::kTooManyExperts:
      return "more experts than the scheduler's limit";
    case OperationFault::kTooManyRowBlocks:
      return "more row blocks than the capacity";
    case OperationFault::kTooManyTokens:
      return "more tokens than the capacity";
    case OperationFault::kTooManyTiles:
      return "more tiles than a claim word counts";
    case OperationFault::kDecodeReduces:
      return "a decode operation has no reduction";
    case OperationFault::kAnnouncedChain:
      return "announced, but not a decode operation that ends after GateUp";
    case OperationFault::kBadEpoch:
      return "epoch is 0 or was the slot's last one";
    case OperationFault::kNoSuchSlot:
      break;
  }
  return "no such slot";
}

// Checks a template by itself; against the limits it is checked where it is installed.
EXPERTPLEX_HOST_DEVICE constexpr OperationFault check_template(const OperationTemplate& t) {
  if (t.experts == 0 || t.intermediate == 0 || t.gate_up.rows == 0 || t.gate_up.columns == 0 ||
      t.row_group == 0 || t.commits_per_tile == 0 || t.down_scan_window == 0 ||
      t.max_row_blocks == 0) {
    return OperationFault::kEmptyShape;
  }
  // Down is there with all its sizes, or it is not there; the reduction adds what Down wrote.
  const bool has_down = t.hidden > 0;
  if (has_down ? t.down.rows == 0 || t.down.columns == 0 : t.reduce_tokens > 0) {
    return OperationFault::kEmptyShape;
  }
  if (has_down && t.gate_up.rows != t.down.rows) return OperationFault::kRowsDiffer;
  if (t.phase == Phase::kDecode && t.reduce_tokens > 0) return OperationFault::kDecodeReduces;
  // The committer of an announced tile would open a claim before the agent has published what the
  // claimer reads (the explorer found it).
  if (t.announced && (t.phase != Phase::kDecode || has_down))
    return OperationFault::kAnnouncedChain;
  if (t.experts > UINT16_MAX) return OperationFault::kTooManyExperts;
  if (t.max_row_blocks > UINT16_MAX) return OperationFault::kTooManyRowBlocks;
  const uint64_t columns =
      t.gate_up_columns() > t.down_columns() ? t.gate_up_columns() : t.down_columns();
  if (columns > UINT16_MAX ||
      t.max_row_blocks * columns >= kMaxTilesPerOperation / t.commits_per_tile)
    return OperationFault::kTooManyTiles;
  return OperationFault::kNone;
}

// What a ready operation brings at runtime.
struct OperationRequest {
  // Not 0, and another one for every operation of the slot (a counter): words of earlier operations
  // are told apart by it, so a value may come again only after all others (it wraps at 2^32).
  uint32_t epoch = 0;
  uint32_t layer = 0;
  uint32_t participant_mask = 0;  // senders whose rows are in it; carried for the backend
  uint32_t tokens = 0;            // tokens to reduce; ignored where the template has no reduction
  const uint32_t* rows_per_expert = nullptr;  // template.experts entries, read during submit only
};

// Rows of one expert in an operation.
struct ExpertRows {
  uint32_t rows = 0;
  uint32_t first_block = 0;  // dense row-block index of its first row tile
};

// A row block of an operation, with all that a tile needs besides: one 16-byte load.
struct alignas(16) RowBlock {
  ExpertRows of_expert;
  uint32_t row_blocks = 0;  // of the operation
  uint16_t expert = 0;
  uint16_t layer = 0;
};
static_assert(sizeof(RowBlock) == 16);

// An operation in flight. Plain data: written by the deciding agent at submit while the slot is
// free, read from a claim to its commit.
struct OperationFields {
  uint32_t epoch = 0;
  uint32_t layer = 0;
  uint32_t participant_mask = 0;
  uint32_t tokens = 0;
  uint32_t row_blocks = 0;  // equals the footprint x_moe
  uint32_t gate_up_tiles = 0;
  uint32_t down_tiles = 0;
  uint32_t reduce_tiles = 0;

  EXPERTPLEX_HOST_DEVICE constexpr uint32_t tiles() const {
    return gate_up_tiles + down_tiles + reduce_tiles;
  }
};

}  // namespace expertplex::apk
