// attend_chunk(): against a softmax in double, and bit for bit against itself under every grouping
// of rows.
#include <gtest/gtest.h>

#include <limits>

#include "cpu/kernels_reference.h"

namespace expertplex::cpu {
namespace {

using testing::random_value;
using testing::random_values;
using testing::same_bits;

// A KV cache of one KV head among `kv_heads`, in pages as backend/kv_cache.h lays them out. What
// lies beyond `tokens` is NaN: it must never reach a result.
struct TestCache {
  DataType type;
  int head_dim, kv_heads, tokens;
  std::vector<float> keys, values;  // [tokens, head_dim] of the tested head, as stored
  std::vector<std::byte> pages;
  static constexpr int kHead = 1;

  TestCache(Random& random, DataType type, int head_dim, int kv_heads, int tokens)
      : type(type), head_dim(head_dim), kv_heads(kv_heads), tokens(tokens) {
    const size_t element = data_type_bytes(type);
    const int page_count = (tokens + kAttentionPageTokens - 1) / kAttentionPageTokens;
    pages.assign(page_bytes() * page_count, std::byte{0xFF});
    for (int t = 0; t < tokens; ++t) {
      for (int part = 0; part < 2; ++part) {
        for (int d = 0; d < head_dim; ++d) {
          const float x = random_value(random);
          std::byte* at = &pages[page_bytes() * (t / kAttentionPageTokens)] +
                          ((part * kAttentionPageTokens + t % kAttentionPageTokens) * kv_size() +
                           kHead * head_dim + d) *
                              element;
          float stored = x;
          if (type == DataType::kBf16) {
            const Bf16 b = to_bf16(x);
            std::memcpy(at, &b, 2);
            stored = to_float(b);
          } else {
            std::memcpy(at, &x, 4);
          }
          (part == 0 ? keys : values).push_back(stored);
        }
      }
    }
  }
  int kv_size() const { return kv_heads * head_dim; }
  size_t page_bytes() const {
    return 2 * kAttentionPageTokens * static_cast<size_t>(kv_size()) * data_type_bytes(type);
  }
  AttentionChunk chunk(int first, int end) const {
    AttentionChunk c;
    c.type = type;
    c.head_dim = head_dim;
    c.first_position = first;
    c.token_count = std::min(kAttentionChunkTokens, end - first);
    c.token_stride = kv_size();
    c.value_offset = static_cast<int64_t>(kAttentionPageTokens) * kv_size();
    for (int i = 0; i * kAttentionPageTokens < c.token_count; ++i) {
      c.pages[i] = &pages[page_bytes() * (first / kAttentionPageTokens + i)] +
                   kHead * head_dim * data_type_bytes(type);
    }
    return c;
  }
};

// Attention of rows [first, first + count) of `queries` [tokens, group, head_dim].
std::vector<float> attend(const KernelSet& kernels, const TestCache& cache,
                          const std::vector<float>& queries, int group, int first, int count) {
  const int row = group * cache.head_dim;
  std::vector<float> output(static_cast<size_t>(count) * row, 0.0f);
  std::vector<float> maxima(count * group, -std::numeric_limits<float>::infinity());
  std::vector<float> sums(count * group, 0.0f), scratch(attention_scratch_floats(cache.head_dim));
  const AttentionRows rows{.row_count = count,
                           .group = group,
                           .first_position = first,
                           .scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim)),
                           .row_stride = row,
                           .queries = &queries[static_cast<size_t>(first) * row],
                           .outputs = output.data(),
                           .maxima = maxima.data(),
                           .sums = sums.data(),
                           .scratch = scratch.data()};
  for (int begin = 0; begin < first + count; begin += kAttentionChunkTokens) {
    kernels.attend_chunk(cache.chunk(begin, first + count), rows);
  }
  for (int i = 0; i < count * group; ++i) {
    for (int d = 0; d < cache.head_dim; ++d) output[i * cache.head_dim + d] /= sums[i];
  }
  return output;
}

std::vector<double> reference(const TestCache& cache, const float* query, int position) {
  std::vector<double> weights(position + 1), output(cache.head_dim, 0.0);
  double top = -1e30, sum = 0;
  for (int t = 0; t <= position; ++t) {
    double dot = 0;
    for (int d = 0; d < cache.head_dim; ++d) {
      dot += static_cast<double>(query[d]) * cache.keys[t * cache.head_dim + d];
    }
    weights[t] = dot / std::sqrt(static_cast<double>(cache.head_dim));
    top = std::max(top, weights[t]);
  }
  for (auto& w : weights) sum += w = std::exp(w - top);
  for (int t = 0; t <= position; ++t) {
    for (int d = 0; d < cache.head_dim; ++d) {
      output[d] += weights[t] / sum * cache.values[t * cache.head_dim + d];
    }
  }
  return output;
}

TEST(AttentionKernel, AgreesWithDoubleReference) {
  const KernelSets all = runnable_kernel_sets();
  Random random(1);
  for (const DataType type : {DataType::kBf16, DataType::kF32}) {
    for (const int head_dim : {16, 48, 64, 128}) {
      const int group = static_cast<int>(random.between(1, 6));
      const TestCache cache(random, type, head_dim, 3, 150);
      const auto queries = random_values(random, 150 * group * head_dim, 2.0f);
      for (int s = 0; s < all.count; ++s) {
        const auto output = attend(*all.sets[s], cache, queries, group, 0, cache.tokens);
        for (int i = 0; i < cache.tokens * group; ++i) {
          const auto expected = reference(cache, &queries[i * head_dim], i / group);
          for (int d = 0; d < head_dim; ++d) {
            ASSERT_NEAR(output[i * head_dim + d], expected[d], 1e-5) << all.sets[s]->name;
          }
        }
      }
    }
  }
}

TEST(AttentionKernel, BitsDoNotDependOnTheRowsBeside) {
  const KernelSets all = runnable_kernel_sets();
  Random random(2);
  for (const DataType type : {DataType::kBf16, DataType::kF32}) {
    for (const int group : {1, 2, 3, 8}) {
      const int head_dim = 64, row = group * head_dim;
      const TestCache cache(random, type, head_dim, 2, 203);
      const auto queries = random_values(random, 203 * row, 3.0f);
      for (int s = 0; s < all.count; ++s) {
        const auto whole = attend(*all.sets[s], cache, queries, group, 0, cache.tokens);
        for (int round = 0; round < 60; ++round) {
          const int first = static_cast<int>(random.below(cache.tokens));
          const int left = cache.tokens - first;
          const int count =
              static_cast<int>(random.between(1, round % 2 ? left : std::min(left, 5)));
          const auto part = attend(*all.sets[s], cache, queries, group, first, count);
          const std::vector<float> expected(whole.begin() + first * row,
                                            whole.begin() + (first + count) * row);
          ASSERT_TRUE(same_bits(part, expected))
              << all.sets[s]->name << " rows " << first << " + " << count << ", group " << group;
        }
      }
    }
  }
}

}  // namespace
}  // namespace expertplex::cpu
