// Where keys and values of a token lie in an attention server's KV cache: pages of kKvPageTokens
// tokens; within (layer, page): keys [page_tokens, kv_size], then values [page_tokens, kv_size].
// A sequence's block table lists its pages in order of position.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/model_spec.h"
#include "model/tensor.h"

namespace expertplex {

constexpr int kKvPageTokens = 16;

struct KvCacheShape {
  int layer_count = 0;
  int kv_size = 0;                  // kv_head_count * head_dim
  DataType type = DataType::kBf16;  // kBf16, or kF32 for models in F32
  int page_count = 0;

  size_t row_bytes() const { return static_cast<size_t>(kv_size) * data_type_bytes(type); }
  // Of one layer.
  size_t page_bytes() const { return 2 * kKvPageTokens * row_bytes(); }
  size_t bytes_per_token() const { return 2 * row_bytes() * static_cast<size_t>(layer_count); }
  size_t total_bytes() const {
    return page_bytes() * static_cast<size_t>(layer_count) * static_cast<size_t>(page_count);
  }
};

constexpr int pages_for(int tokens) { return (tokens + kKvPageTokens - 1) / kKvPageTokens; }

}  // namespace expertplex
