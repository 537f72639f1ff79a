#include "cpu/attention/attention_layer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "cpu/attention/expert_choice.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/quantize.h"
#include "cpu/kernels/vector_ops.h"

namespace expertplex::cpu {
namespace {

static_assert(kKvPageTokens == kAttentionPageTokens, "the attention kernel reads whole KV pages");

void move_forward(const void*& at, size_t bytes) {
  if (at) at = static_cast<const std::byte*>(at) + bytes;
}

// Pages are read in scattered order: with small memory pages, address translation takes most of the
// time (four times at 32 sequences of 500 tokens). Advice only: without huge pages it is just
// slower.
void advise_huge_pages(std::byte* data, size_t bytes) {
  constexpr size_t kMemoryPage = 4096;
  const size_t skip = -reinterpret_cast<uintptr_t>(data) % kMemoryPage;
  if (bytes > skip) madvise(data + skip, (bytes - skip) / kMemoryPage * kMemoryPage, MADV_HUGEPAGE);
}

void project_rows(const AlignedBuffer<float>& x, int columns, int rows, const LinearWeight& weight,
                  AlignedBuffer<float>& y) {
  linear(LinearInput{.data = x.data(), .row_stride = columns}, rows, weight, 0, weight.out_features,
         y.data(), weight.out_features);
}

}  // namespace

AttentionLayer::AttentionLayer(const ModelSpec& spec, std::shared_ptr<const ModelWeights> weights,
                               const KvCacheShape& kv_cache, std::byte* kv_cache_data)
    : spec_(spec),
      weights_(std::move(weights)),
      kv_cache_(kv_cache),
      kv_cache_data_(kv_cache_data),
      rope_(std::min(spec.max_position_count, kv_cache.page_count * kKvPageTokens), spec.rotary_dim,
            spec.rope_theta),
      normed_(kRowChunk, spec.hidden_size),
      q_(kRowChunk, spec.query_size()),
      attended_(kRowChunk, spec.query_size()),
      k_(kRowChunk, spec.kv_size()),
      v_(kRowChunk, spec.kv_size()),
      projected_(kRowChunk, spec.hidden_size),
      router_logits_(kRowChunk, spec.expert_count),
      router_scratch_(2, spec.expert_count),
      maxima_(kRowChunk, spec.query_head_count),
      sums_(kRowChunk, spec.query_head_count),
      attention_scratch_(1, attention_scratch_floats(spec.head_dim)) {
  advise_huge_pages(kv_cache_data, kv_cache.total_bytes());
}

void AttentionLayer::run(int layer, const LayerRows& rows) {
  EXPERTPLEX_CHECK(rows.count > 0 && rows.count <= kRowChunk, "{} rows", rows.count);
  const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
  const int hidden = spec_.hidden_size;
  project(weights, rows);

  int row = 0;
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    const RowSegment& segment = rows.segments[s];
    const RowSegment* const following =
        s + 1 < rows.segments.size() ? &rows.segments[s + 1] : nullptr;
    const int64_t first = row;
    for (int i = 0; i < segment.row_count; ++i, ++row) {
      float* const q = &q_[static_cast<size_t>(row) * spec_.query_size()];
      float* const k = &k_[static_cast<size_t>(row) * spec_.kv_size()];
      normalize_heads(weights, q, k);
      rotate_heads(segment.first_position + i, q, k);
      write_kv(layer, segment.first_position + i, segment, k,
               &v_[static_cast<size_t>(row) * spec_.kv_size()]);
    }
    attend(layer, segment, following, &q_[static_cast<size_t>(first * spec_.query_size())],
           &attended_[static_cast<size_t>(first * spec_.query_size())]);
  }
  EXPERTPLEX_CHECK(row == rows.count, "segments hold {} rows of {}", row, rows.count);

  project_rows(attended_, spec_.query_size(), rows.count, weights.output, projected_);
  for (int r = 0; r < rows.count; ++r) {
    const size_t at = static_cast<size_t>(r) * hidden;
    add_scaled(1.0f, &projected_[at], hidden, rows.residual + at);
    rms_norm(rows.residual + at, weights.post_attention_norm.data(), hidden, spec_.rms_norm_eps,
             &normed_[at]);
  }
  route(weights, rows);
  *rows.moe_input = normed_.data();
}

void AttentionLayer::project(const LayerWeights& weights, const LayerRows& rows) {
  const int hidden = spec_.hidden_size;
  for (int r = 0; r < rows.count; ++r) {
    const size_t at = static_cast<size_t>(r) * hidden;
    rms_norm(rows.residual + at, weights.input_norm.data(), hidden, spec_.rms_norm_eps,
             &normed_[at]);
  }
  project_rows(normed_, hidden, rows.count, weights.query, q_);
  project_rows(normed_, hidden, rows.count, weights.key, k_);
  project_rows(normed_, hidden, rows.count, weights.value, v_);
}

void AttentionLayer::normalize_heads(const LayerWeights& weights, float* q, float* k) const {
  const float* const q_weight = weights.query_norm.data();
  const float* const k_weight = weights.key_norm.data();
  const float eps = spec_.rms_norm_eps;
  switch (spec_.qk_norm) {
    case QkNorm::kNone:
      return;
    case QkNorm::kWholeProjection:
      rms_norm(q, q_weight, spec_.query_size(), eps, q);
      rms_norm(k, k_weight, spec_.kv_size(), eps, k);
      return;
    case QkNorm::kPerHead:
      for (int h = 0; h < spec_.query_head_count; ++h) {
        rms_norm(q + h * spec_.head_dim, q_weight, spec_.head_dim, eps, q + h * spec_.head_dim);
      }
      for (int h = 0; h < spec_.kv_head_count; ++h) {
        rms_norm(k + h * spec_.head_dim, k_weight, spec_.head_dim, eps, k + h * spec_.head_dim);
      }
      return;
  }
}

void AttentionLayer::rotate_heads(int position, float* q, float* k) const {
  const float* const cosines = rope_.cosines(position);
  const float* const sines = rope_.sines(position);
  for (int h = 0; h < spec_.query_head_count; ++h) {
    rotate_half_split(q + h * spec_.head_dim, cosines, sines, rope_.half());
  }
  for (int h = 0; h < spec_.kv_head_count; ++h) {
    rotate_half_split(k + h * spec_.head_dim, cosines, sines, rope_.half());
  }
}

std::byte* AttentionLayer::page(int layer, uint32_t index) const {
  const size_t at = static_cast<size_t>(layer) * static_cast<size_t>(kv_cache_.page_count) + index;
  return kv_cache_data_ + at * kv_cache_.page_bytes();
}

void AttentionLayer::write_kv(int layer, int position, const RowSegment& segment, const float* k,
                              const float* v) {
  const uint32_t index = segment.block_table[static_cast<size_t>(position / kKvPageTokens)];
  std::byte* const key =
      page(layer, index) + static_cast<size_t>(position % kKvPageTokens) * kv_cache_.row_bytes();
  std::byte* const value = key + kKvPageTokens * kv_cache_.row_bytes();
  if (kv_cache_.type == DataType::kF32) {
    std::memcpy(key, k, kv_cache_.row_bytes());
    std::memcpy(value, v, kv_cache_.row_bytes());
  } else {
    float_to_bf16(k, kv_cache_.kv_size, reinterpret_cast<Bf16*>(key));
    float_to_bf16(v, kv_cache_.kv_size, reinterpret_cast<Bf16*>(value));
  }
}

// The first KV head's part of the cache; what is read next is the segment's next chunk, or the
// first one of the segment that follows.
AttentionChunk AttentionLayer::chunk_of(int layer, const RowSegment& segment,
                                        const RowSegment* following, int first_position) const {
  const int end = segment.first_position + segment.row_count;
  AttentionChunk chunk;
  chunk.type = kv_cache_.type;
  chunk.head_dim = spec_.head_dim;
  chunk.first_position = first_position;
  chunk.token_count = std::min(kAttentionChunkTokens, end - first_position);
  chunk.token_stride = kv_cache_.kv_size;
  chunk.value_offset = static_cast<int64_t>(kKvPageTokens) * kv_cache_.kv_size;
  const int first_page = first_position / kKvPageTokens;
  for (int i = 0; i < pages_for(chunk.token_count); ++i) {
    chunk.pages[i] = page(layer, segment.block_table[static_cast<size_t>(first_page + i)]);
  }
  const bool last = first_position + kAttentionChunkTokens >= end;
  const RowSegment* const next = last ? following : &segment;
  const int next_page = last ? 0 : first_page + kAttentionChunkPages;
  for (int i = 0; next && i < kAttentionChunkPages; ++i) {
    if (next_page + i >= pages_for(next->first_position + next->row_count)) break;
    chunk.next_pages[i] = page(layer, next->block_table[static_cast<size_t>(next_page + i)]);
  }
  return chunk;
}

void AttentionLayer::attend(int layer, const RowSegment& segment, const RowSegment* following,
                            const float* q, float* output) {
  const int group = spec_.query_head_count / spec_.kv_head_count;
  const int heads = segment.row_count * group;  // per KV head
  const int end = segment.first_position + segment.row_count;
  const size_t head_bytes = static_cast<size_t>(spec_.head_dim) * data_type_bytes(kv_cache_.type);
  const int64_t group_floats = static_cast<int64_t>(group) * spec_.head_dim;
  std::fill(output, output + static_cast<size_t>(segment.row_count) * spec_.query_size(), 0.0f);
  std::fill_n(maxima_.data(), heads * spec_.kv_head_count, -std::numeric_limits<float>::infinity());
  std::fill_n(sums_.data(), heads * spec_.kv_head_count, 0.0f);
  AttentionRows rows{.row_count = segment.row_count,
                     .group = group,
                     .first_position = segment.first_position,
                     .scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim)),
                     .row_stride = spec_.query_size(),
                     .scratch = attention_scratch_.data()};
  // All KV heads of a chunk in turn: they lie side by side in memory.
  for (int first = 0; first < end; first += kAttentionChunkTokens) {
    AttentionChunk chunk = chunk_of(layer, segment, following, first);
    for (int kv_head = 0; kv_head < spec_.kv_head_count; ++kv_head) {
      rows.queries = q + kv_head * group_floats;
      rows.outputs = output + kv_head * group_floats;
      rows.maxima = &maxima_[static_cast<size_t>(kv_head * heads)];
      rows.sums = &sums_[static_cast<size_t>(kv_head * heads)];
      attend_chunk(chunk, rows);
      for (const void*& at : chunk.pages) move_forward(at, head_bytes);
      for (const void*& at : chunk.next_pages) move_forward(at, head_bytes);
    }
  }
  for (int i = 0; i < heads * spec_.kv_head_count; ++i) {
    float* const head = output + (i % heads / group) * static_cast<int64_t>(spec_.query_size()) +
                        i / heads * group_floats +
                        (i % group) * static_cast<int64_t>(spec_.head_dim);
    multiply_by(1.0f / sums_[static_cast<size_t>(i)], spec_.head_dim, head);
  }
}

void AttentionLayer::route(const LayerWeights& weights, const LayerRows& rows) {
  project_rows(normed_, spec_.hidden_size, rows.count, weights.router, router_logits_);
  const float* const bias = weights.router_bias.empty() ? nullptr : weights.router_bias.data();
  const int top_k = spec_.experts_per_token;
  for (int r = 0; r < rows.count; ++r) {
    choose_experts(spec_, &router_logits_[static_cast<size_t>(r) * spec_.expert_count], bias,
                   router_scratch_.data(), rows.expert_ids + r * top_k,
                   rows.expert_weights + r * top_k);
  }
}

}  // namespace expertplex::cpu
