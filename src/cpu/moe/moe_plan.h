// What one CPU MoE server consists of, computed from its configuration before anything is
// allocated: the window's layout, tile shapes, operation slots and scratch memory.
//
// Tile sizes. A tile is the unit of preemption, so its time bounds what the other phase waits:
// columns are chosen for about kPrefillTileFlops (50-150 us of one core) or kDecodeTileFlops, but
// not below kColumnStep columns, which bounds the number of tiles of large models. FP8 activations
// are requantised per 128 columns between the two products, so there GateUp columns come in 128s.
//
// Thread rules: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "apk/operation.h"
#include "apk/scheduler_storage.h"
#include "backend/backend.h"
#include "base/result.h"
#include "model/model_spec.h"
#include "transport/moe_buffers.h"

namespace expertplex::cpu {

constexpr uint32_t kDecodeTileRows = 16;
constexpr double kPrefillTileFlops = 8 << 20;
constexpr double kDecodeTileFlops = 2 << 20;
constexpr uint32_t kColumnStep = 32;
constexpr uint32_t kReduceTileBytes = 256 << 10;  // read by one reduction tile, about
constexpr int kMaxClusters = 64;

struct MoePlan {
  explicit MoePlan(transport::MoeBufferLayout window_layout) : layout(std::move(window_layout)) {}

  transport::MoeBufferLayout layout;
  MoeActivation activation = MoeActivation::kNative;
  int hidden = 0, intermediate = 0;
  int cluster_count = 0;
  // By apk::phase_index. `slot` of a template is filled in where it is installed.
  apk::OperationTemplate shape[apk::kPhaseCount];
  apk::SchedulerLimits limits;
  apk::SharingPolicy policy;

  const apk::OperationTemplate& of(apk::Phase phase) const {
    return shape[apk::phase_index(phase)];
  }
  uint32_t slots(apk::Phase phase) const { return limits.slots[apk::phase_index(phase)]; }
  // Rows of intermediate results (and, for prefill, of final ones) per slot, padding included.
  size_t slot_rows(apk::Phase phase) const {
    return size_t{of(phase).max_row_blocks} * of(phase).gate_up.rows;
  }
  size_t scales_per_row() const {
    return activation == MoeActivation::kFp8 ? static_cast<size_t>(intermediate) / 128 : 0;
  }
  // Beside the window: intermediate rows and scales, prefill result rows.
  size_t scratch_bytes() const;
  // Tile shapes and bytes, one line each.
  std::string describe() const;
};

// kInvalidArgument names the field, what is expected and what was there.
Result<MoePlan> plan_moe_server(const MoeServerConfig& config, const ModelSpec& spec);

}  // namespace expertplex::cpu
