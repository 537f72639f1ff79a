// Causal attention of a block of query rows over one chunk of the KV cache, with online softmax:
// the rows' running maximum, sum and unnormalised output are carried from chunk to chunk.
//
// Chunks lie at fixed absolute positions (multiples of kAttentionChunkTokens), and what a row adds
// per chunk depends on its own position only. So a row's result is the same, bit for bit, whatever
// other rows are computed with it and however its prompt was cut into iterations.
//
// Thread rules: pure functions over caller memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/tensor.h"

namespace expertplex::cpu {

constexpr int kAttentionChunkTokens = 64;
constexpr int kAttentionPageTokens = 16;  // tokens that lie side by side in the cache
constexpr int kAttentionChunkPages = kAttentionChunkTokens / kAttentionPageTokens;
// head_dim is a multiple of this.
constexpr int kAttentionHeadDimStep = 16;

// One KV head's keys and values at positions [first_position, first_position + token_count). Whole
// pages are read, but nothing from beyond token_count reaches a result.
struct AttentionChunk {
  DataType type = DataType::kBf16;  // kBf16 or kF32
  int head_dim = 0;
  int first_position = 0;  // a multiple of kAttentionChunkTokens
  int token_count = 0;     // 1 ... kAttentionChunkTokens
  // Per page: the head's first key; its token t follows at t * token_stride elements, its values
  // value_offset elements after the keys.
  const void* pages[kAttentionChunkPages] = {};
  int64_t token_stride = 0;
  int64_t value_offset = 0;
  // The pages that will be read next, or null: fetched into the cache on the way.
  const void* next_pages[kAttentionChunkPages] = {};
};

// row_count consecutive positions, each with the `group` query heads of that KV head.
struct AttentionRows {
  int row_count = 0;
  int group = 0;
  int first_position = 0;
  float scale = 1.0f;              // of the scores
  int64_t row_stride = 0;          // of queries and outputs, in floats
  const float* queries = nullptr;  // row r, head h at r * row_stride + h * head_dim
  float* outputs = nullptr;        // the same layout; zero before the first chunk
  float* maxima = nullptr;         // [row_count * group]; -infinity before the first chunk
  float* sums = nullptr;           // [row_count * group]; zero before the first chunk
  float* scratch = nullptr;        // attention_scratch_floats(head_dim)
};

constexpr size_t attention_scratch_floats(int head_dim) {
  return 2 * static_cast<size_t>(kAttentionChunkTokens) * static_cast<size_t>(head_dim);
}

void attend_chunk(const AttentionChunk& chunk, const AttentionRows& rows);

}  // namespace expertplex::cpu
