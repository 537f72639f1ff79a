// Sampler: chooses a token from one row of logits. Semantics in model/sampling_params.h:
// temperature 0 (or below 1e-5) is greedy; else logits / temperature, top-k, top-p, one draw.
//
// Exactly: candidates are ordered by falling logit, equals by rising id. top_k keeps the first k;
// top_p then keeps the shortest run of the order whose probabilities reach top_p of what is left.
// The draw walks the kept tokens by rising id until their sum passes u * total, u being a function
// of (seed, position) alone.
//
// Thread rules: one thread per object. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/attention_executor.h"

namespace expertplex::cpu {

// Uniform in [0, 1): what the token at `position` of a request with this seed is drawn with.
double sampling_uniform(uint64_t seed, int64_t position);

class Sampler {
 public:
  explicit Sampler(int vocab_size);

  // The token for `position`, or -1 if no logit is a number. Overwrites the forbidden logits.
  int32_t sample(std::span<float> logits, const SampleSpec& spec, int64_t position);

 private:
  // Both order the candidates as far as they must and return how many stay.
  int keep_top_k(std::span<const float> logits, int count, int top_k);
  int keep_top_p(std::span<const float> logits, int count, float top_p);

  std::vector<float> weights_;       // [vocab] exp((logit - max) / temperature)
  std::vector<int32_t> candidates_;  // [vocab] ids
};

}  // namespace expertplex::cpu
