// attend_chunk() as a template over an instruction wrapper S (see kernel_set.h).
#pragma once

#include <cstdint>

#include "cpu/kernels/attention_kernel.h"
#include "cpu/kernels/linear_impl.h"
#include "cpu/kernels/vector_ops_impl.h"

namespace expertplex::cpu {

template <class S>
struct AttentionKernel {
  using Vector = typename S::Vector;
  static constexpr int kWidth = S::kWidth;
  static constexpr int kChunk = kAttentionChunkTokens;
  static constexpr int kPage = kAttentionPageTokens;
  // From that many query heads on, widening the chunk once is cheaper than on every use.
  static constexpr int kWidenMinHeads = 3 * S::kRows;

  template <typename T>
  struct Cache {
    const T* pages[kAttentionChunkPages];
    int64_t token_stride;
    int64_t value_offset;
    const T* key(int t) const { return pages[t / kPage] + (t % kPage) * token_stride; }
    const T* value(int t) const { return key(t) + value_offset; }
  };

  static void attend_chunk(const AttentionChunk& chunk, const AttentionRows& rows) {
    if (chunk.type == DataType::kF32) return attend(chunk, rows, cache<float>(chunk));
    const Cache<Bf16> stored = cache<Bf16>(chunk);
    if (rows.row_count * rows.group < kWidenMinHeads) return attend(chunk, rows, stored);
    attend(chunk, rows, widen(chunk, stored, rows.scratch));
  }

 private:
  template <typename T>
  static Cache<T> cache(const AttentionChunk& chunk) {
    Cache<T> c;
    for (int i = 0; i < kAttentionChunkPages; ++i)
      c.pages[i] = static_cast<const T*>(chunk.pages[i]);
    c.token_stride = chunk.token_stride;
    c.value_offset = chunk.value_offset;
    return c;
  }

  // Keys and values of tokens [t, t + 4) of the next chunk. Inlined by force: GCC 12 takes a
  // function that only prefetches for one without effect, and drops its calls.
  [[gnu::always_inline]] static inline void prefetch4(const AttentionChunk& chunk, int t) {
    const char* const page = static_cast<const char*>(chunk.next_pages[t / kPage]);
    if (!page) return;
    const int64_t element = static_cast<int64_t>(data_type_bytes(chunk.type));
    for (int i = 0; i < 4; ++i) {
      const char* const key = page + (t % kPage + i) * chunk.token_stride * element;
      const char* const value = key + chunk.value_offset * element;
      for (int64_t at = 0; at < chunk.head_dim * element; at += 64) {
        __builtin_prefetch(key + at, 0, 2);
        __builtin_prefetch(value + at, 0, 2);
      }
    }
  }

  static Cache<float> widen(const AttentionChunk& chunk, const Cache<Bf16>& stored,
                            float* scratch) {
    Cache<float> c;
    c.token_stride = 2 * chunk.head_dim;  // a token's key, then its value
    c.value_offset = chunk.head_dim;
    for (int i = 0; i < kAttentionChunkPages; ++i)
      c.pages[i] = scratch + i * kPage * c.token_stride;
    for (int t = 0; t < chunk.token_count; ++t) {
      float* to = scratch + t * c.token_stride;
      VectorOps<S>::widen(stored.key(t), chunk.head_dim, to);
      VectorOps<S>::widen(stored.value(t), chunk.head_dim, to + chunk.head_dim);
    }
    return c;
  }

  template <typename T>
  static void attend(const AttentionChunk& chunk, const AttentionRows& rows,
                     const Cache<T>& cache) {
    const int heads = rows.row_count * rows.group;
    int i = 0;
    for (; i + S::kRows <= heads; i += S::kRows) block<S::kRows>(chunk, rows, cache, i);
    if constexpr (S::kRows > 2) {
      for (; i + 2 <= heads; i += 2) block<2>(chunk, rows, cache, i);
    }
    for (; i < heads; ++i) block<1>(chunk, rows, cache, i);
  }

  // Query heads [first, first + kR), counted row by row, against the whole chunk.
  template <int kR, typename T>
  static void block(const AttentionChunk& chunk, const AttentionRows& rows, const Cache<T>& cache,
                    int first) {
    const float* queries[kR];
    float* outputs[kR];
    int visible[kR];  // how many of the chunk's tokens the row sees
    int tokens = 0;
    for (int r = 0; r < kR; ++r) {
      const int row = (first + r) / rows.group, head = (first + r) % rows.group;
      const int64_t offset = row * rows.row_stride + head * static_cast<int64_t>(chunk.head_dim);
      queries[r] = rows.queries + offset;
      outputs[r] = rows.outputs + offset;
      const int seen = rows.first_position + row + 1 - chunk.first_position;
      visible[r] = seen < 0 ? 0 : seen > chunk.token_count ? chunk.token_count : seen;
      tokens = visible[r] > tokens ? visible[r] : tokens;
    }
    if (tokens == 0) return;
    alignas(64) float scores[kR][kChunk];
    for (int t = 0; t < tokens; t += 4) {
      // Spread over the work of the chunk's first rows: a burst would only queue up.
      if (first == 0) prefetch4(chunk, t);
      score4<kR>(queries, cache, t, chunk.head_dim, scores);
    }
    float decay[kR];
    for (int r = 0; r < kR; ++r) {
      decay[r] = softmax_step(scores[r], visible[r], rows.scale, rows.maxima[first + r],
                              rows.sums[first + r]);
    }
    int d = 0;
    for (; d + 4 * kWidth <= chunk.head_dim; d += 4 * kWidth) {
      mix<kR, 4>(scores, tokens, cache, d, decay, outputs);
    }
    for (; d < chunk.head_dim; d += kWidth) mix<kR, 1>(scores, tokens, cache, d, decay, outputs);
  }

  // scores[r][t ... t + 3] = queries[r] . keys; t is a multiple of 4, so the keys share a page.
  template <int kR, typename T>
  static void score4(const float* const (&queries)[kR], const Cache<T>& cache, int t, int head_dim,
                     float (&scores)[kR][kChunk]) {
    Vector sum[kR][4];
    for (auto& row : sum) {
      for (auto& v : row) v = S::zero();
    }
    const T* const keys = cache.key(t);
    for (int d = 0; d < head_dim; d += kWidth) {
      Vector k[4];
      for (int c = 0; c < 4; ++c) k[c] = S::load(keys + c * cache.token_stride + d);
      for (int r = 0; r < kR; ++r) {
        const Vector q = S::load(queries[r] + d);
        for (int c = 0; c < 4; ++c) sum[r][c] = S::fma(q, k[c], sum[r][c]);
      }
    }
    LinearKernel<S>::template store<kR, 4>(sum, &scores[0][t], kChunk);
  }

  // Turns the first `visible` scores into softmax numerators, the rest into zeros; moves the
  // running maximum and sum on and returns the factor for what was added up under the old maximum.
  static float softmax_step(float* scores, int visible, float scale, float& maximum, float& sum) {
    if (visible == 0) {
      for (int i = 0; i < kChunk; i += kWidth) S::store(scores + i, S::zero());
      return 1.0f;
    }
    const float chunk_top = scale * VectorOps<S>::largest(scores, visible);
    const float top = chunk_top > maximum ? chunk_top : maximum;
    const Vector shift = S::set1(top), factor = S::set1(scale);
    Vector total = S::zero();
    for (int i = 0; i < kChunk; i += kWidth) {
      Vector e = S::zero();
      if (i < visible) {
        e = VectorOps<S>::exp(S::subtract(S::multiply(S::load(scores + i), factor), shift));
        if (visible - i < kWidth) {
          S::store(scores + i, e);
          e = S::load_first(scores + i, visible - i);
        }
        total = S::add(total, e);
      }
      S::store(scores + i, e);
    }
    const float decay = S::largest(VectorOps<S>::exp(S::set1(maximum - top)));
    sum = sum * decay + S::sum(total);
    maximum = top;
    return decay;
  }

  // outputs[r][d ...] = decay[r] * outputs[r][d ...] + weights[r][t] * values, t ascending.
  template <int kR, int kVectors, typename T>
  static void mix(const float (&weights)[kR][kChunk], int tokens, const Cache<T>& cache, int d,
                  const float (&decay)[kR], float* const (&outputs)[kR]) {
    Vector sum[kR][kVectors];
    for (int r = 0; r < kR; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = S::multiply(S::load(outputs[r] + d + v * kWidth), S::set1(decay[r]));
      }
    }
    for (int begin = 0; begin < tokens; begin += kPage) {
      const T* values = cache.value(begin) + d;
      const int end = begin + kPage < tokens ? begin + kPage : tokens;
      for (int t = begin; t < end; ++t, values += cache.token_stride) {
        Vector value[kVectors];
        for (int v = 0; v < kVectors; ++v) value[v] = S::load(values + v * kWidth);
        for (int r = 0; r < kR; ++r) {
          const Vector w = S::set1(weights[r][t]);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = S::fma(w, value[v], sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kR; ++r) {
      for (int v = 0; v < kVectors; ++v) S::store(outputs[r] + d + v * kWidth, sum[r][v]);
    }
  }
};

}  // namespace expertplex::cpu
