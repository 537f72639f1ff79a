#include "cpu/attention/cpu_attention_executor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/quantize.h"
#include "cpu/kernels/vector_ops.h"
#include "cpu/moe/row_format.h"

namespace expertplex::cpu {
namespace {

// Row `index` of a matrix that is not FP8, as floats.
void read_row(const LinearWeight& matrix, int index, float* row) {
  const int columns = matrix.in_features;
  const size_t at = static_cast<size_t>(index) * static_cast<size_t>(columns);
  switch (matrix.type) {
    case DataType::kF32:
      std::memcpy(row, static_cast<const float*>(matrix.data) + at, sizeof(float) * columns);
      return;
    case DataType::kBf16:
      return bf16_to_float(static_cast<const Bf16*>(matrix.data) + at, columns, row);
    case DataType::kF16:
      return fp16_to_float(static_cast<const Fp16*>(matrix.data) + at, columns, row);
    case DataType::kFp8E4m3:
      break;
  }
  EXPERTPLEX_CHECK(false, "an FP8 embedding");
}

}  // namespace

Result<std::unique_ptr<AttentionExecutor>> CpuAttentionExecutor::create(
    const AttentionServerConfig& config, const ModelSpec& spec,
    std::shared_ptr<const ModelWeights> weights, std::unique_ptr<transport::MoeClient> moe) {
  if (spec.head_dim % kAttentionHeadDimStep != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "head_dim {}: the CPU backend needs a multiple of {}", spec.head_dim,
                      kAttentionHeadDimStep);
  }
  if (config.activation == MoeActivation::kFp8 && spec.hidden_size % kActivationScaleTile != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "FP8 activations need a hidden size in {}s; it is {}", kActivationScaleTile,
                      spec.hidden_size);
  }
  const KvCacheShape& kv = config.kv_cache;
  if (config.max_rows <= 0 || kv.layer_count != spec.layer_count || kv.kv_size != spec.kv_size() ||
      (kv.type != DataType::kF32 && kv.type != DataType::kBf16) || !config.kv_cache_data) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: KV cache of {} layers x {} ({}), max_rows {}; the model has {} layers x {}",
        config.name, kv.layer_count, kv.kv_size, data_type_name(kv.type), config.max_rows,
        spec.layer_count, spec.kv_size());
  }
  return std::unique_ptr<AttentionExecutor>(
      new CpuAttentionExecutor(config, spec, std::move(weights), std::move(moe)));
}

CpuAttentionExecutor::CpuAttentionExecutor(const AttentionServerConfig& config,
                                           const ModelSpec& spec,
                                           std::shared_ptr<const ModelWeights> weights,
                                           std::unique_ptr<transport::MoeClient> moe)
    : spec_(spec),
      weights_(weights),
      moe_(std::move(moe)),
      activation_(config.activation),
      phase_(config.phase),
      max_rows_(config.max_rows),
      dispatch_row_bytes_(dispatch_row_bytes(spec.hidden_size, config.activation)),
      attention_(spec, std::move(weights), config.kv_cache, config.kv_cache_data),
      sampler_(spec.vocab_size),
      residual_(config.max_rows, spec.hidden_size),
      dispatch_rows_(config.max_rows, dispatch_row_bytes_),
      expert_ids_(config.max_rows, spec.experts_per_token),
      expert_weights_(config.max_rows, spec.experts_per_token),
      expert_sum_(1, spec.hidden_size),
      row_scratch_(1, spec.hidden_size),
      final_rows_(kLogitRows, spec.hidden_size),
      logits_(kLogitRows, spec.vocab_size) {
  segments_.reserve(kRowChunk);
}

void CpuAttentionExecutor::check_input(const IterationInput& input) const {
  EXPERTPLEX_CHECK(input.phase == phase_, "a {} iteration on a {} server",
                   apk::phase_name(input.phase), apk::phase_name(phase_));
  size_t rows = 0;
  for (const SequenceRows& sequence : input.sequences) {
    const int end = sequence.context_length + sequence.row_count;
    EXPERTPLEX_CHECK(sequence.row_count > 0 && sequence.context_length >= 0);
    EXPERTPLEX_CHECK(end <= attention_.max_positions(), "position {} of {}", end,
                     attention_.max_positions());
    EXPERTPLEX_CHECK(sequence.block_table.size() >= static_cast<size_t>(pages_for(end)),
                     "{} pages for {} tokens", sequence.block_table.size(), end);
    rows += static_cast<size_t>(sequence.row_count);
  }
  EXPERTPLEX_CHECK(
      rows == input.tokens.size() && rows > 0 && rows <= static_cast<size_t>(max_rows_),
      "{} rows, {} tokens, at most {}", rows, input.tokens.size(), max_rows_);
  for (const int32_t token : input.tokens) {
    EXPERTPLEX_CHECK(token >= 0 && token < spec_.vocab_size, "token {}", token);
  }
}

Result<IterationOutput> CpuAttentionExecutor::run_iteration(const IterationInput& input,
                                                            IterationProbe* probe) {
  check_input(input);
  row_count_ = static_cast<int>(input.tokens.size());
  if (probe) {
    probe->logits.clear();
    probe->expert_ids.clear();
    probe->expert_weights.clear();
    probe->hidden.clear();
  }
  EXPERTPLEX_TRY(moe_->begin_iteration());
  embed(input);
  for (int layer = 0; layer < spec_.layer_count; ++layer) {
    if (aborted_.load(std::memory_order_relaxed)) {
      return make_error(ErrorCode::kCancelled, "attention iteration aborted before layer {}",
                        layer);
    }
    EXPERTPLEX_TRY(run_layer(layer, input, probe));
  }
  return sample(input, probe);
}

Result<void> CpuAttentionExecutor::skip_iteration() {
  EXPERTPLEX_TRY(moe_->begin_iteration());
  return moe_->skip_iteration();
}

void CpuAttentionExecutor::abort() {
  aborted_.store(true, std::memory_order_relaxed);
  moe_->abort();
}

void CpuAttentionExecutor::embed(const IterationInput& input) {
  float* row = residual_.data();
  for (const int32_t token : input.tokens) {
    read_row(weights_->embedding, token, row);
    row += spec_.hidden_size;
  }
}

Result<void> CpuAttentionExecutor::run_layer(int layer, const IterationInput& input,
                                             IterationProbe* probe) {
  run_dense_half(layer, input);
  const size_t rows = static_cast<size_t>(row_count_);
  const size_t choices = rows * static_cast<size_t>(spec_.experts_per_token);
  const transport::Routing routing{.token_count = row_count_,
                                   .top_k = spec_.experts_per_token,
                                   .expert_ids = {expert_ids_.data(), choices},
                                   .weights = {expert_weights_.data(), choices}};
  EXPERTPLEX_TRY(
      moe_->dispatch(layer, {dispatch_rows_.data(), rows * dispatch_row_bytes_}, routing));
  if (input.on_layer_cached) input.on_layer_cached(layer);
  EXPERTPLEX_TRY(moe_->combine(layer));
  for (int row = 0; row < row_count_; ++row) add_expert_results(row);
  if (probe) probe_layer(*probe);
  return {};
}

// Cuts the iteration's rows into chunks of kRowChunk; a chunk may hold pieces of several sequences.
void CpuAttentionExecutor::run_dense_half(int layer, const IterationInput& input) {
  int first_row = 0, rows = 0;
  segments_.clear();
  for (const SequenceRows& sequence : input.sequences) {
    for (int done = 0; done < sequence.row_count;) {
      const int piece = std::min(sequence.row_count - done, kRowChunk - rows);
      segments_.push_back({piece, sequence.context_length + done, sequence.block_table});
      done += piece;
      rows += piece;
      if (rows < kRowChunk) continue;
      run_chunk(layer, first_row, rows);
      first_row += rows;
      rows = 0;
      segments_.clear();
    }
  }
  if (rows > 0) run_chunk(layer, first_row, rows);
}

void CpuAttentionExecutor::run_chunk(int layer, int first_row, int row_count) {
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  const float* moe_input = nullptr;
  attention_.run(
      layer, LayerRows{.count = row_count,
                       .segments = segments_,
                       .residual = &residual_[first_row * hidden],
                       .moe_input = &moe_input,
                       .expert_ids = &expert_ids_[first_row * spec_.experts_per_token],
                       .expert_weights = &expert_weights_[first_row * spec_.experts_per_token]});
  for (int r = 0; r < row_count; ++r) {
    encode_dispatch_row(moe_input + r * hidden, spec_.hidden_size, activation_,
                        &dispatch_rows_[static_cast<size_t>(first_row + r) * dispatch_row_bytes_]);
  }
}

void CpuAttentionExecutor::add_expert_results(int row) {
  const int hidden = spec_.hidden_size;
  const transport::CombinedToken token = moe_->combined(row);
  std::fill_n(expert_sum_.data(), hidden, 0.0f);
  for (size_t i = 0; i < token.rows.size(); ++i) {
    const float* const result =
        decode_combine_row(token.rows[i], hidden, activation_, row_scratch_.data());
    add_scaled(token.weights[i], result, hidden, expert_sum_.data());
  }
  add_scaled(1.0f, expert_sum_.data(), hidden,
             &residual_[static_cast<size_t>(row) * static_cast<size_t>(hidden)]);
}

void CpuAttentionExecutor::compute_logits(std::span<const int> rows) {
  const int hidden = spec_.hidden_size;
  EXPERTPLEX_CHECK(rows.size() <= kLogitRows);
  for (size_t i = 0; i < rows.size(); ++i) {
    rms_norm(&residual_[static_cast<size_t>(rows[i]) * static_cast<size_t>(hidden)],
             weights_->final_norm.data(), hidden, spec_.rms_norm_eps, &final_rows_[i * hidden]);
  }
  linear(LinearInput{.data = final_rows_.data(), .row_stride = hidden},
         static_cast<int>(rows.size()), weights_->lm_head, 0, spec_.vocab_size, logits_.data(),
         spec_.vocab_size);
}

Result<IterationOutput> CpuAttentionExecutor::sample(const IterationInput& input,
                                                     IterationProbe* probe) {
  IterationOutput output;
  output.next_tokens.assign(input.sequences.size(), -1);
  if (probe && probe->logits_of_all_rows) probe_all_logits(*probe);
  int group[kLogitRows];
  int count = 0;
  for (size_t s = 0; s < input.sequences.size(); ++s) {
    if (input.sequences[s].sample) group[count++] = static_cast<int>(s);
    if (count == kLogitRows || (count > 0 && s + 1 == input.sequences.size())) {
      EXPERTPLEX_TRY(sample_group(input, {group, static_cast<size_t>(count)}, probe, output));
      count = 0;
    }
  }
  return output;
}

Result<void> CpuAttentionExecutor::sample_group(const IterationInput& input,
                                                std::span<const int> sequences,
                                                IterationProbe* probe, IterationOutput& output) {
  int rows[kLogitRows];
  int end = 0, next = 0;  // the row after sequence `next - 1`
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (; next <= sequences[i]; ++next)
      end += input.sequences[static_cast<size_t>(next)].row_count;
    rows[i] = end - 1;
  }
  compute_logits({rows, sequences.size()});
  const size_t vocab = static_cast<size_t>(spec_.vocab_size);
  if (probe && !probe->logits_of_all_rows) {
    probe->logits.insert(probe->logits.end(), &logits_[0], &logits_[0] + sequences.size() * vocab);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceRows& sequence = input.sequences[static_cast<size_t>(sequences[i])];
    const int position = sequence.context_length + sequence.row_count;
    const int32_t token = sampler_.sample({&logits_[i * vocab], vocab}, *sequence.sample, position);
    if (token < 0) {
      return make_error(ErrorCode::kInternal,
                        "no logit of the token at position {} is a number: weights or activations "
                        "are damaged or overflow",
                        position);
    }
    output.next_tokens[static_cast<size_t>(sequences[i])] = token;
  }
  return {};
}

void CpuAttentionExecutor::probe_all_logits(IterationProbe& probe) {
  const size_t vocab = static_cast<size_t>(spec_.vocab_size);
  for (int first = 0; first < row_count_; first += kLogitRows) {
    int rows[kLogitRows];
    const int count = std::min(kLogitRows, row_count_ - first);
    for (int i = 0; i < count; ++i) rows[i] = first + i;
    compute_logits({rows, static_cast<size_t>(count)});
    probe.logits.insert(probe.logits.end(), &logits_[0],
                        &logits_[0] + static_cast<size_t>(count) * vocab);
  }
}

void CpuAttentionExecutor::probe_layer(IterationProbe& probe) const {
  const size_t rows = static_cast<size_t>(row_count_);
  const size_t choices = rows * static_cast<size_t>(spec_.experts_per_token);
  const size_t floats = rows * static_cast<size_t>(spec_.hidden_size);
  probe.expert_ids.emplace_back(expert_ids_.data(), expert_ids_.data() + choices);
  probe.expert_weights.emplace_back(expert_weights_.data(), expert_weights_.data() + choices);
  probe.hidden.emplace_back(residual_.data(), residual_.data() + floats);
}

}  // namespace expertplex::cpu
