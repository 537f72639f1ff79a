#include "cpu/attention/expert_choice.h"

#include <algorithm>
#include <limits>

#include "cpu/kernels/vector_ops.h"

namespace expertplex::cpu {

void choose_experts(const ModelSpec& spec, const float* logits, const float* bias, float* scratch,
                    int32_t* expert_ids, float* weights) {
  const int experts = spec.expert_count, top_k = spec.experts_per_token;
  float* const scores = scratch;
  float* const choice = scratch + experts;
  if (spec.router_score == RouterScore::kSigmoid) {
    sigmoid(logits, experts, scores);
  } else {
    const float sum = softmax_numerators(logits, experts, 1.0f, scores);
    for (int e = 0; e < experts; ++e) scores[e] /= sum;
  }
  // What is not a number ranks last, and what was chosen ranks behind that.
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  for (int e = 0; e < experts; ++e) {
    const float c = bias ? scores[e] + bias[e] : scores[e];
    choice[e] = c > kLowest ? c : kLowest;
  }
  for (int k = 0; k < top_k; ++k) {
    const int best = argmax(choice, experts);
    choice[best] = -std::numeric_limits<float>::infinity();
    expert_ids[k] = best;
  }
  std::sort(expert_ids, expert_ids + top_k);
  float sum = 0;
  for (int k = 0; k < top_k; ++k) {
    weights[k] = scores[expert_ids[k]];
    sum += weights[k];
  }
  if (!spec.renormalize) return;
  for (int k = 0; k < top_k; ++k) weights[k] /= sum;
}

}  // namespace expertplex::cpu
