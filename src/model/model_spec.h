// ModelSpec: what `config.json` of a Hugging Face directory says about a model, checked and in our
// words. Architectures: MiniMaxM2ForCausalLM and Qwen3MoeForCausalLM (math in DESIGN and the
// model's `transformers` implementation).
//
// Thread rules: a value, immutable after loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex {

enum class Architecture { kMiniMaxM2, kQwen3Moe };
// RMSNorm of q and k before the rotary embedding: over each head with one shared weight vector
// (Qwen3), or over the whole projection with one mean square (MiniMax-M2).
enum class QkNorm { kNone, kPerHead, kWholeProjection };
enum class RouterScore { kSoftmax, kSigmoid };

// FP8 weights carry one F32 multiplier per 128 x 128 tile of the matrix.
constexpr int kFp8ScaleTile = 128;

struct ModelSpec {
  std::string name;  // the directory's last component
  Architecture architecture = Architecture::kMiniMaxM2;
  int layer_count = 0;
  int hidden_size = 0;
  int vocab_size = 0;
  int max_position_count = 0;
  float rms_norm_eps = 1e-6f;
  bool tied_embeddings = false;

  // Attention.
  int query_head_count = 0;
  int kv_head_count = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // the first rotary_dim components of a head turn, half-split pairing
  double rope_theta = 0;
  QkNorm qk_norm = QkNorm::kNone;

  // Mixture of experts; every layer has one.
  int expert_count = 0;
  int experts_per_token = 0;
  int expert_intermediate_size = 0;
  RouterScore router_score = RouterScore::kSoftmax;
  bool router_bias = false;  // e_score_correction_bias: added for the choice, not for the weight
  bool renormalize = true;   // chosen weights divided by their sum

  bool fp8_weights = false;  // quantization_config says fp8 with 128 x 128 tiles
  std::vector<int32_t> eos_token_ids;

  int query_size() const { return query_head_count * head_dim; }
  int kv_size() const { return kv_head_count * head_dim; }
};

// Reads `config.json` (and `generation_config.json` for the eos ids, if there). Refuses what this
// build cannot run exactly (unknown architecture, rope scaling, dense layers, other quantisation,
// an activation other than silu, attention bias, a sliding window) by naming file, field, expected,
// got.
Result<ModelSpec> load_model_spec(const std::string& directory);

// Parameters by part, for `info` and for memory arithmetic.
struct ParameterCount {
  int64_t total = 0;
  int64_t routed_experts = 0;
  int64_t active_per_token = 0;  // without the input embedding
};
ParameterCount count_parameters(const ModelSpec& spec);

}  // namespace expertplex
