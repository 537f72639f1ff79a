// Which experts a row goes to, from its router logits, in float32 (DESIGN section 2, "Where modules
// run"): scores by sigmoid or softmax, the k largest of score + bias (lowest id wins ties), weights
// the scores without the bias, divided by their sum where the model says so.
//
// Thread rules: pure functions over caller memory.
#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace expertplex::cpu {

// logits [expert_count]; bias [expert_count] or null; scratch [2 * expert_count]. Fills expert_ids
// (ascending) and weights, [experts_per_token] each.
void choose_experts(const ModelSpec& spec, const float* logits, const float* bias, float* scratch,
                    int32_t* expert_ids, float* weights);

}  // namespace expertplex::cpu
