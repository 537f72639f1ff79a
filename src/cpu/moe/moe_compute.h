// The arithmetic of the tiles of an MoE server: what a worker does with a TileDescriptor. Each tile
// owns its outputs and an output element's arithmetic is fixed (cpu/kernels/linear.h), so results
// do not depend on tile shape, order, preemption or which worker computes.
//
// GateUp: rows x columns of SwiGLU(gate, up) into the slot's intermediate rows; FP8 mode
// requantises
//         them per row and 128 columns, as the GPU's epilogue does.
// Down:   decode encodes each row into the combine slot that came with it; prefill keeps float
// rows. Reduce: per token of prefill, weight * row added in float, ascending expert id, then
// encoded.
//
// Thread rules: run() may be called by many threads at once, each with its own Workspace, for
// different tiles; the scheduler's claims and commits order a tile after those that it depends on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apk/operation.h"
#include "apk/tile.h"
#include "base/number_formats.h"
#include "base/result.h"
#include "cpu/kernels/linear.h"
#include "cpu/moe/moe_plan.h"
#include "model/weights.h"

namespace expertplex::cpu {

struct UnmapFloats {
  size_t bytes = 0;
  void operator()(float* data) const;
};

// Zeroed floats that cost memory only where they are touched.
class LazyFloats {
 public:
  static Result<LazyFloats> map(size_t count);
  float* data() const { return data_.get(); }

 private:
  std::unique_ptr<float, UnmapFloats> data_;
};

class MoeCompute {
 public:
  // What one worker needs for itself.
  struct Workspace {
    std::vector<float> input;  // [rows, hidden] widened FP8 rows
    std::vector<float> gate;   // [rows, columns] of either product
    std::vector<float> up;
    std::vector<float> sum;          // [hidden]
    std::vector<Fp8E4m3> quantized;  // [columns]
  };

  // `window` is the window's memory, laid out as the plan says.
  static Result<std::unique_ptr<MoeCompute>> create(const MoePlan& plan,
                                                    std::shared_ptr<const ModelWeights> weights,
                                                    std::byte* window);
  Workspace make_workspace() const;

  // Agent, before submitting a prefill operation: which of each row block's rows are real.
  void note_prefill_rows(uint32_t slot, const uint32_t* rows_per_expert);

  // kInternal when data from outside points out of its bounds; nothing was written there.
  Result<void> run(const apk::TileDescriptor& tile, Workspace& workspace) const;

 private:
  // Rows of a phase's slots, by phase_index.
  struct Rows {
    LazyFloats intermediate;           // [slot][row][intermediate]
    LazyFloats scales;                 // [slot][row][intermediate / 128], FP8 mode
    LazyFloats results;                // [slot][row][hidden], prefill
    std::vector<uint16_t> block_rows;  // [slot][row block]: real rows, prefill
  };

  MoeCompute(const MoePlan& plan, std::shared_ptr<const ModelWeights> weights, std::byte* window)
      : plan_(plan), weights_(std::move(weights)), window_(window) {}

  void gate_up(const apk::TileDescriptor& tile, Workspace& workspace) const;
  Result<void> down(const apk::TileDescriptor& tile, Workspace& workspace) const;
  Result<void> reduce(const apk::TileDescriptor& tile, Workspace& workspace) const;

  const ExpertWeights& expert(const apk::TileDescriptor& tile) const;
  LinearInput input_rows(const apk::TileDescriptor& tile, Workspace& workspace) const;
  const Rows& rows(const apk::TileDescriptor& tile) const {
    return rows_[apk::phase_index(tile.phase)];
  }
  // Index of the tile's first row within its phase's scratch rows.
  size_t scratch_row(const apk::TileDescriptor& tile) const;
  Result<void> send_decode_rows(const apk::TileDescriptor& tile, const float* y, int first_column,
                                int columns) const;

  MoePlan plan_;
  std::shared_ptr<const ModelWeights> weights_;
  std::byte* window_;
  Rows rows_[apk::kPhaseCount];
};

}  // namespace expertplex::cpu
