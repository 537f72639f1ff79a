// ModelWeights: all tensors of a checkpoint directory, memory-mapped and checked against the
// ModelSpec: a missing tensor, a missing scale, a wrong shape or type is a refusal that names file,
// tensor, expected and got. Weights are used in place; only norms, router biases and scales are
// converted to float copies.
//
// Thread rules: immutable after loading; shared by all servers of a process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model_spec.h"
#include "model/tensor.h"

namespace expertplex {

struct ExpertWeights {
  LinearWeight gate;  // [intermediate, hidden]
  LinearWeight up;    // [intermediate, hidden]
  LinearWeight down;  // [hidden, intermediate]
};

struct LayerWeights {
  std::vector<float> input_norm;            // [hidden]
  LinearWeight query, key, value, output;   // no biases
  std::vector<float> query_norm, key_norm;  // [head_dim] or [query_size] / [kv_size]; empty if none
  std::vector<float> post_attention_norm;   // [hidden]
  LinearWeight router;                      // [experts, hidden]
  std::vector<float> router_bias;           // [experts]; empty if none
  std::vector<ExpertWeights> experts;
};

struct ModelWeights {
  LinearWeight embedding;  // [vocab, hidden]; never FP8
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  LinearWeight lm_head;           // [vocab, hidden]; the embedding when tied
  int64_t checkpoint_bytes = 0;

  // Keeps the mappings and converted scales alive; implementation in weights.cc.
  std::shared_ptr<const void> storage;
};

// Called with bytes done and bytes in all, while shards are being mapped and read ahead.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

Result<std::shared_ptr<const ModelWeights>> load_model_weights(const std::string& directory,
                                                               const ModelSpec& spec,
                                                               const LoadProgress& progress = {});

}  // namespace expertplex
