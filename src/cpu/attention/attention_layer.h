// AttentionLayer: the dense half of a transformer layer for a few rows at a time: RMSNorm, q/k/v,
// qk-norm, rotary embedding, KV write, causal attention over the cache, output projection,
// residual, RMSNorm and router. Everything in float32; weights in place.
//
// Rows are taken in chunks of at most kRowChunk so that what is computed in between stays in the L2
// cache, however many rows the iteration has; the residual stream alone spans all of them.
//
// Thread rules: one thread per object. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/kv_cache.h"
#include "cpu/attention/rope_table.h"
#include "cpu/kernels/aligned_buffer.h"
#include "cpu/kernels/attention_kernel.h"
#include "model/weights.h"

namespace expertplex::cpu {

constexpr int kRowChunk = 128;

// Consecutive rows of one sequence within a chunk.
struct RowSegment {
  int row_count = 0;
  int first_position = 0;
  std::span<const uint32_t> block_table;
};

// Rows of a chunk, as pointers into what spans the iteration. Packed.
struct LayerRows {
  int count = 0;
  std::span<const RowSegment> segments;  // their rows add up to count
  float* residual = nullptr;             // [count, hidden], in and out
  const float** moe_input = nullptr;     // out: [count, hidden], valid until the next run()
  int32_t* expert_ids = nullptr;         // out: [count, top_k], ascending
  float* expert_weights = nullptr;       // out: [count, top_k]
};

class AttentionLayer {
 public:
  AttentionLayer(const ModelSpec& spec, std::shared_ptr<const ModelWeights> weights,
                 const KvCacheShape& kv_cache, std::byte* kv_cache_data);

  void run(int layer, const LayerRows& rows);

  // Positions that this object can compute: what model and cache allow.
  int max_positions() const { return rope_.position_count(); }

 private:
  void project(const LayerWeights& weights, const LayerRows& rows);
  void normalize_heads(const LayerWeights& weights, float* q, float* k) const;
  void rotate_heads(int position, float* q, float* k) const;
  void write_kv(int layer, int position, const RowSegment& segment, const float* k, const float* v);
  void attend(int layer, const RowSegment& segment, const RowSegment* following, const float* q,
              float* output);
  AttentionChunk chunk_of(int layer, const RowSegment& segment, const RowSegment* following,
                          int first_position) const;
  void route(const LayerWeights& weights, const LayerRows& rows);
  std::byte* page(int layer, uint32_t index) const;

  ModelSpec spec_;
  std::shared_ptr<const ModelWeights> weights_;
  KvCacheShape kv_cache_;
  std::byte* kv_cache_data_;
  RopeTable rope_;

  AlignedBuffer<float> normed_;             // [kRowChunk, hidden]
  AlignedBuffer<float> q_, attended_;       // [kRowChunk, query_size]
  AlignedBuffer<float> k_, v_;              // [kRowChunk, kv_size]
  AlignedBuffer<float> projected_;          // [kRowChunk, hidden]
  AlignedBuffer<float> router_logits_;      // [kRowChunk, experts]
  AlignedBuffer<float> router_scratch_;     // [2, experts]
  AlignedBuffer<float> maxima_, sums_;      // [KV heads, rows, heads per KV head]
  AlignedBuffer<float> attention_scratch_;  // attention_scratch_floats
};

}  // namespace expertplex::cpu
