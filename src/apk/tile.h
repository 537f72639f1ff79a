// A tile: the smallest part of an operation that is claimed, computed and committed on its own
// (paper, "APK chooses a tile"). It owns its outputs, so that nothing in scheduling can change a
// number.
#pragma once

#include <cstdint>

#include "apk/phase.h"
#include "base/host_device.h"

namespace expertplex::apk {

// GateUp: grouped GEMM 1 with SwiGLU and FP8 quantisation in its epilogue. Down: grouped GEMM 2.
// Reduce: adds the rows of one token over this server's experts, ascending expert id (prefill only;
// decode adds on the attention side).
enum class TileKind : uint8_t { kGateUp = 0, kDown = 1, kReduce = 2 };

constexpr uint32_t kTileKindCount = 3;

constexpr const char* tile_kind_name(TileKind kind) {
  switch (kind) {
    case TileKind::kGateUp:
      return "gate_up";
    case TileKind::kDown:
      return "down";
    case TileKind::kReduce:
      break;
  }
  return "reduce";
}

// What a cluster is told to compute: 32 bytes, handed as they are to all its members.
struct TileDescriptor {
  uint32_t epoch = 0;  // of the operation
  Phase phase = Phase::kPrefill;
  TileKind kind = TileKind::kGateUp;
  uint8_t slot = 0;      // operation slot within the phase
  uint8_t borrowed = 0;  // 1: taken while the cluster's own phase had nothing claimable
  uint16_t layer = 0;
  uint16_t expert = 0;  // local index on this server; 0 for Reduce
  uint32_t row_block =
      0;  // dense index of (expert, row tile) within the operation; Reduce: tile index
  uint32_t first_row = 0;    // within the expert's rows; Reduce: first token
  uint32_t row_count = 0;    // 1..rows of the tile shape
  uint16_t column_tile = 0;  // of the intermediate (GateUp) or hidden (Down) columns; 0 for Reduce
  uint16_t status = 0;       // handoff.h
  uint32_t row_blocks = 0;   // of the operation: a commit need not read its fields

  friend EXPERTPLEX_HOST_DEVICE constexpr bool operator==(const TileDescriptor& a,
                                                          const TileDescriptor& b) {
    return a.epoch == b.epoch && a.phase == b.phase && a.kind == b.kind && a.slot == b.slot &&
           a.borrowed == b.borrowed && a.layer == b.layer && a.expert == b.expert &&
           a.row_block == b.row_block && a.first_row == b.first_row && a.row_count == b.row_count &&
           a.column_tile == b.column_tile && a.row_blocks == b.row_blocks;
  }
};
static_assert(sizeof(TileDescriptor) == 32);

}  // namespace expertplex::apk
