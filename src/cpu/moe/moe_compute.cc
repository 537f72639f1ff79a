#include "cpu/moe/moe_compute.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "cpu/kernels/quantize.h"
#include "cpu/kernels/vector_ops.h"
#include "cpu/moe/row_format.h"

namespace expertplex::cpu {
namespace {

using apk::Phase;
using apk::TileDescriptor;
using apk::TileKind;
using transport::PrefillTokenEntry;

struct ColumnRange {
  int first = 0, count = 0;
};

ColumnRange columns_of(const TileDescriptor& tile, uint32_t tile_columns, int total) {
  const int first = static_cast<int>(tile.column_tile * tile_columns);
  return {first, std::min(static_cast<int>(tile_columns), total - first)};
}

}  // namespace

Result<LazyFloats> LazyFloats::map(size_t count) {
  LazyFloats floats;
  if (count == 0) return floats;
  const size_t bytes = count * sizeof(float);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return make_error(ErrorCode::kResourceExhausted, "MoE scratch rows: no memory for {} bytes: {}",
                      bytes, std::strerror(errno));
  }
  floats.data_ = {static_cast<float*>(base), UnmapFloats{bytes}};
  return floats;
}

void UnmapFloats::operator()(float* data) const { munmap(data, bytes); }

Result<std::unique_ptr<MoeCompute>> MoeCompute::create(const MoePlan& plan,
                                                       std::shared_ptr<const ModelWeights> weights,
                                                       std::byte* window) {
  const transport::MoeBufferConfig& b = plan.layout.config();
  EXPERTPLEX_CHECK(static_cast<int>(weights->layers.size()) == b.layer_count);
  for (const LayerWeights& layer : weights->layers) {
    EXPERTPLEX_CHECK(static_cast<int>(layer.experts.size()) == b.expert_count);
  }
  std::unique_ptr<MoeCompute> compute(new MoeCompute(plan, std::move(weights), window));
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const size_t count = plan.slots(phase) * plan.slot_rows(phase);
    Rows& rows = compute->rows_[apk::phase_index(phase)];
    EXPERTPLEX_ASSIGN(rows.intermediate, LazyFloats::map(count * plan.intermediate));
    EXPERTPLEX_ASSIGN(rows.scales, LazyFloats::map(count * plan.scales_per_row()));
    if (phase == Phase::kDecode) continue;
    EXPERTPLEX_ASSIGN(rows.results, LazyFloats::map(count * plan.hidden));
    rows.block_rows.resize(size_t{plan.slots(phase)} * plan.of(phase).max_row_blocks);
  }
  return compute;
}

MoeCompute::Workspace MoeCompute::make_workspace() const {
  size_t rows = 1, columns = 1;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    if (plan_.slots(phase) == 0) continue;
    const apk::OperationTemplate& t = plan_.of(phase);
    rows = std::max<size_t>(rows, t.gate_up.rows);
    columns = std::max<size_t>({columns, t.gate_up.columns, t.down.columns});
  }
  Workspace workspace;
  if (plan_.activation == MoeActivation::kFp8) {
    workspace.input.resize(rows * plan_.hidden);
    workspace.quantized.resize(columns);
  }
  workspace.gate.resize(rows * columns);
  workspace.up.resize(rows * columns);
  workspace.sum.resize(plan_.hidden);
  return workspace;
}

void MoeCompute::note_prefill_rows(uint32_t slot, const uint32_t* rows_per_expert) {
  const apk::OperationTemplate& t = plan_.of(Phase::kPrefill);
  uint16_t* block =
      rows_[apk::phase_index(Phase::kPrefill)].block_rows.data() + size_t{slot} * t.max_row_blocks;
  uint16_t* const end = block + t.max_row_blocks;
  for (uint32_t e = 0; e < t.experts; ++e) {
    for (uint32_t done = 0; done < rows_per_expert[e]; done += t.gate_up.rows) {
      EXPERTPLEX_CHECK(block < end);
      *block++ = static_cast<uint16_t>(std::min(t.gate_up.rows, rows_per_expert[e] - done));
    }
  }
  std::fill(block, end, uint16_t{0});
}

Result<void> MoeCompute::run(const TileDescriptor& tile, Workspace& workspace) const {
  switch (tile.kind) {
    case TileKind::kGateUp:
      gate_up(tile, workspace);
      return {};
    case TileKind::kDown:
      return down(tile, workspace);
    case TileKind::kReduce:
      break;
  }
  return reduce(tile, workspace);
}

const ExpertWeights& MoeCompute::expert(const TileDescriptor& tile) const {
  const int first = plan_.layout.config().first_expert(plan_.layout.server());
  return weights_->layers[tile.layer].experts[static_cast<size_t>(first + tile.expert)];
}

size_t MoeCompute::scratch_row(const TileDescriptor& tile) const {
  return tile.slot * plan_.slot_rows(tile.phase) +
         size_t{tile.row_block} * plan_.of(tile.phase).gate_up.rows;
}

LinearInput MoeCompute::input_rows(const TileDescriptor& tile, Workspace& workspace) const {
  const transport::MoeBufferLayout& layout = plan_.layout;
  const int senders = layout.config().prefill_senders;
  const size_t offset =
      tile.phase == Phase::kDecode
          ? layout.decode_row(tile.slot, tile.expert, static_cast<int>(tile.first_row))
          : layout.prefill_row(
                tile.slot / senders, tile.slot % senders,
                static_cast<int>(tile.row_block * plan_.of(tile.phase).gate_up.rows));
  const std::byte* row = window_ + offset;
  const size_t stride = layout.dispatch_stride();
  LinearInput x;
  if (plan_.activation == MoeActivation::kNative) {
    x.data = reinterpret_cast<const float*>(row);
    x.row_stride = static_cast<int64_t>(stride / sizeof(float));
    return x;
  }
  for (uint32_t r = 0; r < tile.row_count; ++r) {
    widen_row(reinterpret_cast<const Fp8E4m3*>(row + r * stride), plan_.hidden,
              workspace.input.data() + size_t{r} * plan_.hidden);
  }
  x.data = workspace.input.data();
  x.row_stride = plan_.hidden;
  x.scales = reinterpret_cast<const float*>(row + plan_.hidden);
  x.scale_stride = static_cast<int64_t>(stride / sizeof(float));
  return x;
}

void MoeCompute::gate_up(const TileDescriptor& tile, Workspace& workspace) const {
  const uint32_t tile_columns = plan_.of(tile.phase).gate_up.columns;
  const auto [first, count] = columns_of(tile, tile_columns, plan_.intermediate);
  const int row_count = static_cast<int>(tile.row_count);
  const LinearInput x = input_rows(tile, workspace);
  const ExpertWeights& weights = expert(tile);
  linear(x, row_count, weights.gate, first, count, workspace.gate.data(), tile_columns);
  linear(x, row_count, weights.up, first, count, workspace.up.data(), tile_columns);

  const size_t first_row = scratch_row(tile);
  for (size_t r = 0; r < tile.row_count; ++r) {
    float* gate = workspace.gate.data() + r * tile_columns;
    const float* up = workspace.up.data() + r * tile_columns;
    float* y = rows(tile).intermediate.data() + (first_row + r) * plan_.intermediate + first;
    if (plan_.activation == MoeActivation::kNative) {
      silu_multiply(gate, up, count, y);
      continue;
    }
    silu_multiply(gate, up, count, gate);
    float* scales = rows(tile).scales.data() + (first_row + r) * plan_.scales_per_row();
    quantize_row(gate, count, workspace.quantized.data(), scales + first / kActivationScaleTile);
    widen_row(workspace.quantized.data(), count, y);
  }
}

Result<void> MoeCompute::down(const TileDescriptor& tile, Workspace& workspace) const {
  const uint32_t tile_columns = plan_.of(tile.phase).down.columns;
  const auto [first, count] = columns_of(tile, tile_columns, plan_.hidden);
  const size_t first_row = scratch_row(tile);
  LinearInput x;
  x.data = rows(tile).intermediate.data() + first_row * plan_.intermediate;
  x.row_stride = plan_.intermediate;
  if (plan_.activation == MoeActivation::kFp8) {
    x.scales = rows(tile).scales.data() + first_row * plan_.scales_per_row();
    x.scale_stride = static_cast<int64_t>(plan_.scales_per_row());
  }
  const bool decode = tile.phase == Phase::kDecode;
  float* y =
      decode ? workspace.gate.data() : rows(tile).results.data() + first_row * plan_.hidden + first;
  linear(x, static_cast<int>(tile.row_count), expert(tile).down, first, count, y,
         decode ? static_cast<int64_t>(tile_columns) : plan_.hidden);
  return decode ? send_decode_rows(tile, y, first, count) : Result<void>{};
}

Result<void> MoeCompute::send_decode_rows(const TileDescriptor& tile, const float* y,
                                          int first_column, int columns) const {
  const transport::MoeBufferLayout& layout = plan_.layout;
  const uint32_t* slots = reinterpret_cast<const uint32_t*>(
      window_ + layout.decode_slot(tile.slot, tile.expert, static_cast<int>(tile.first_row)));
  const uint32_t tile_columns = plan_.of(tile.phase).down.columns;
  for (uint32_t r = 0; r < tile.row_count; ++r) {
    if (slots[r] >= static_cast<uint32_t>(layout.decode_slots())) {
      return make_error(ErrorCode::kInternal,
                        "decode layer {}, expert {}, row {}: combine slot {} of {}", tile.layer,
                        tile.expert, tile.first_row + r, slots[r], layout.decode_slots());
    }
    std::byte* row = window_ + layout.decode_combine_row(tile.slot, static_cast<int>(slots[r]));
    encode_combine_columns(y + size_t{r} * tile_columns, first_column, columns, plan_.activation,
                           row);
  }
  return {};
}

Result<void> MoeCompute::reduce(const TileDescriptor& tile, Workspace& workspace) const {
  const transport::MoeBufferLayout& layout = plan_.layout;
  const apk::OperationTemplate& t = plan_.of(Phase::kPrefill);
  const int senders = layout.config().prefill_senders;
  const int microbatch = tile.slot / senders, sender = tile.slot % senders;
  const auto* offsets =
      reinterpret_cast<const uint32_t*>(window_ + layout.prefill_token_offsets(microbatch, sender));
  const auto* entries = reinterpret_cast<const PrefillTokenEntry*>(
      window_ + layout.prefill_token_entries(microbatch, sender));
  const Rows& scratch = rows(tile);
  const float* results =
      scratch.results.data() + tile.slot * plan_.slot_rows(tile.phase) * plan_.hidden;
  const uint16_t* block_rows = scratch.block_rows.data() + size_t{tile.slot} * t.max_row_blocks;
  const auto is_real = [&](uint32_t row) {
    const uint32_t block = row / t.gate_up.rows;
    return block < t.max_row_blocks && row % t.gate_up.rows < block_rows[block];
  };
  for (uint32_t token = tile.first_row; token < tile.first_row + tile.row_count; ++token) {
    const uint32_t begin = offsets[token], end = offsets[token + 1];
    bool valid = begin <= end && end <= static_cast<uint32_t>(layout.prefill_entries());
    std::fill(workspace.sum.begin(), workspace.sum.end(), 0.0f);
    for (uint32_t i = begin; valid && i < end; ++i) {
      valid = is_real(entries[i].row);
      if (!valid) break;
      add_scaled(entries[i].weight, results + size_t{entries[i].row} * plan_.hidden, plan_.hidden,
                 workspace.sum.data());
    }
    if (!valid) {
      return make_error(ErrorCode::kInternal,
                        "prefill layer {}, sender {}, token {}: its list [{}, {}) of at most {} "
                        "names a row that was not sent",
                        tile.layer, sender, token, begin, end, layout.prefill_entries());
    }
    encode_combine_columns(
        workspace.sum.data(), 0, plan_.hidden, plan_.activation,
        window_ + layout.prefill_combine_row(microbatch, sender, static_cast<int>(token)));
  }
  return {};
}

}  // namespace expertplex::cpu
