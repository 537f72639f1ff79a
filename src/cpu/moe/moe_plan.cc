#include "cpu/moe/moe_plan.h"

#include <algorithm>

#include "cpu/moe/row_format.h"

namespace expertplex::cpu {
namespace {

using apk::Phase;

Result<void> expect(const char* field, int64_t got, int64_t expected) {
  if (got == expected) return {};
  return make_error(ErrorCode::kInvalidArgument, "MoE server: {}: expected {}, got {}", field,
                    expected, got);
}

Result<void> check_config(const MoeServerConfig& config, const ModelSpec& spec) {
  const transport::MoeBufferConfig& b = config.buffers;
  EXPERTPLEX_TRY(expect("buffers.layer_count", b.layer_count, spec.layer_count));
  EXPERTPLEX_TRY(expect("buffers.expert_count", b.expert_count, spec.expert_count));
  EXPERTPLEX_TRY(expect("buffers.top_k", b.top_k, spec.experts_per_token));
  if (config.activation == MoeActivation::kFp8) {
    EXPERTPLEX_TRY(expect("hidden_size modulo 128 (FP8 activations)", spec.hidden_size % 128, 0));
    EXPERTPLEX_TRY(expect("expert_intermediate_size modulo 128 (FP8 activations)",
                          spec.expert_intermediate_size % 128, 0));
  }
  EXPERTPLEX_TRY(
      expect("buffers.dispatch_row_bytes", static_cast<int64_t>(b.dispatch_row_bytes),
             static_cast<int64_t>(dispatch_row_bytes(spec.hidden_size, config.activation))));
  EXPERTPLEX_TRY(
      expect("buffers.combine_row_bytes", static_cast<int64_t>(b.combine_row_bytes),
             static_cast<int64_t>(combine_row_bytes(spec.hidden_size, config.activation))));
  if (config.cluster_count < 1 || config.cluster_count > kMaxClusters) {
    return make_error(ErrorCode::kInvalidArgument,
                      "MoE server: cluster_count: expected 1 to {}, got {}", kMaxClusters,
                      config.cluster_count);
  }
  return {};
}

// Columns of a tile: near the target, a multiple of `step`, evenly cut.
uint32_t tile_columns(int columns, double flops_per_column, double target, uint32_t step) {
  const auto total = static_cast<uint32_t>(columns);
  const auto wanted = static_cast<uint32_t>(
      std::clamp(target / flops_per_column, double{1}, static_cast<double>(total)));
  const uint32_t most = std::max(wanted / step * step, step);
  const uint32_t tiles = apk::ceil_div(total, most);
  const uint32_t even = apk::ceil_div(total, tiles);
  return std::min(apk::ceil_div(even, step) * step, total);
}

apk::OperationTemplate make_template(Phase phase, const MoePlan& plan, uint32_t rows) {
  apk::OperationTemplate t;
  const double target = phase == Phase::kPrefill ? kPrefillTileFlops : kDecodeTileFlops;
  const uint32_t step = plan.activation == MoeActivation::kFp8 ? 128 : kColumnStep;
  t.phase = phase;
  t.experts = static_cast<uint32_t>(plan.layout.local_experts());
  t.hidden = static_cast<uint32_t>(plan.hidden);
  t.intermediate = static_cast<uint32_t>(plan.intermediate);
  t.gate_up = {rows, tile_columns(plan.intermediate, 4.0 * rows * plan.hidden, target, step)};
  t.down = {rows, tile_columns(plan.hidden, 2.0 * rows * plan.intermediate, target, kColumnStep)};
  t.row_group = 8;
  return t;
}

apk::OperationTemplate prefill_template(const MoePlan& plan) {
  const transport::MoeBufferConfig& b = plan.layout.config();
  apk::OperationTemplate t =
      make_template(Phase::kPrefill, plan, static_cast<uint32_t>(b.prefill_page_rows));
  const size_t bytes_per_token = static_cast<size_t>(b.top_k) * plan.hidden * sizeof(float);
  t.reduce_tokens =
      static_cast<uint32_t>(std::clamp<size_t>(kReduceTileBytes / bytes_per_token, 1, 256));
  t.max_row_blocks = static_cast<uint32_t>(plan.layout.prefill_pages());
  t.max_tokens = static_cast<uint32_t>(b.max_prefill_tokens);
  return t;
}

apk::OperationTemplate decode_template(const MoePlan& plan) {
  const transport::MoeBufferConfig& b = plan.layout.config();
  apk::OperationTemplate t = make_template(Phase::kDecode, plan, kDecodeTileRows);
  const uint64_t capacity = static_cast<uint64_t>(plan.layout.decode_capacity());
  const uint64_t experts = t.experts;
  const uint64_t rows = capacity * std::min<uint64_t>(static_cast<uint64_t>(b.top_k), experts);
  const uint64_t full = experts * ((capacity + kDecodeTileRows - 1) / kDecodeTileRows);
  const uint64_t spread = (rows + experts * (kDecodeTileRows - 1)) / kDecodeTileRows;
  t.max_row_blocks = static_cast<uint32_t>(std::min(full, spread));
  return t;
}

apk::SharingPolicy make_policy(const SharingConfig& sharing) {
  apk::SharingPolicy policy;
  policy.mode = apk::SwitchMode::kTileSwitching;
  policy.preemption_enabled = sharing.preemption;
  policy.budget.decode_sms = static_cast<uint32_t>(std::max(sharing.decode_clusters, 0));
  policy.budget.max_decode_sms = static_cast<uint32_t>(std::max(sharing.max_decode_clusters, 0));
  policy.budget.expected_footprint_milli =
      static_cast<uint32_t>(std::clamp(sharing.expected_x_moe * 1000, 0.0, 4e9));
  policy.budget.sms_per_cluster = 1;
  return policy;
}

Result<void> check_templates(const MoePlan& plan) {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const uint32_t slots = plan.slots(phase);
    if (slots > apk::kMaxSlotsPerPhase) {
      return make_error(ErrorCode::kInvalidArgument,
                        "MoE server: {} groups x microbatches: expected at most {}, got {}",
                        apk::phase_name(phase), apk::kMaxSlotsPerPhase, slots);
    }
    const apk::OperationFault fault =
        slots == 0 ? apk::OperationFault::kNone : apk::check_template(plan.of(phase));
    if (fault != apk::OperationFault::kNone) {
      return make_error(ErrorCode::kInvalidArgument, "MoE server: {} operations: {}",
                        apk::phase_name(phase), apk::operation_fault_name(fault));
    }
  }
  return {};
}

}  // namespace

Result<MoePlan> plan_moe_server(const MoeServerConfig& config, const ModelSpec& spec) {
  EXPERTPLEX_TRY(config.buffers.check());
  EXPERTPLEX_TRY(check_config(config, spec));
  EXPERTPLEX_ASSIGN(auto layout, transport::MoeBufferLayout::plan(config.buffers, config.index));
  MoePlan plan(std::move(layout));
  plan.activation = config.activation;
  plan.hidden = spec.hidden_size;
  plan.intermediate = spec.expert_intermediate_size;
  plan.cluster_count = config.cluster_count;
  plan.policy = make_policy(config.sharing);

  constexpr uint32_t prefill = apk::phase_index(Phase::kPrefill);
  constexpr uint32_t decode = apk::phase_index(Phase::kDecode);
  const auto microbatches = static_cast<uint32_t>(config.buffers.microbatches);
  apk::SchedulerLimits& limits = plan.limits;
  limits.clusters = static_cast<uint32_t>(config.cluster_count);
  limits.experts = static_cast<uint32_t>(plan.layout.local_experts());
  if (config.buffers.prefill_senders > 0) {
    limits.slots[prefill] = microbatches * static_cast<uint32_t>(config.buffers.prefill_senders);
    plan.shape[prefill] = prefill_template(plan);
    limits.row_blocks[prefill] = plan.shape[prefill].max_row_blocks;
  }
  if (config.buffers.decode_participants > 0) {
    limits.slots[decode] = microbatches;
    plan.shape[decode] = decode_template(plan);
    limits.row_blocks[decode] = plan.shape[decode].max_row_blocks;
  }
  EXPERTPLEX_TRY(check_templates(plan));
  return plan;
}

size_t MoePlan::scratch_bytes() const {
  const size_t intermediate_floats = static_cast<size_t>(intermediate) + scales_per_row();
  const size_t prefill_floats =
      slots(Phase::kPrefill) * slot_rows(Phase::kPrefill) * (intermediate_floats + hidden);
  const size_t decode_floats =
      slots(Phase::kDecode) * slot_rows(Phase::kDecode) * intermediate_floats;
  return (prefill_floats + decode_floats) * sizeof(float);
}

std::string MoePlan::describe() const {
  std::string text = layout.describe();
  text +=
      fmt::format("  {:<22} {:>40} B (committed as it is used)\n", "scratch rows", scratch_bytes());
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    if (slots(phase) == 0) continue;
    const apk::OperationTemplate& t = of(phase);
    text += fmt::format("  {} tiles: {} rows, gate_up {} of {} columns, down {} of {} columns",
                        apk::phase_name(phase), t.gate_up.rows, t.gate_up.columns, t.intermediate,
                        t.down.columns, t.hidden);
    if (t.reduce_tokens > 0) text += fmt::format(", reduce {} tokens", t.reduce_tokens);
    text += "\n";
  }
  return text;
}

}  // namespace expertplex::cpu
