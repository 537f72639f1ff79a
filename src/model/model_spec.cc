#include "model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/shorten.h"

namespace expertplex {
namespace {

namespace fs = std::filesystem;

// Sizes beyond these are mistakes; within them every product of ours fits 64 bits.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 17;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = 1 << 30;
constexpr size_t kMaxShownBytes = 100;  // of a value in a message

template <typename... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kUnsupported, format, std::forward<Args>(args)...);
}

std::string show(const Json& value) {
  return shorten(value.dump(-1, ' ', false, Json::error_handler_t::replace), kMaxShownBytes);
}

// The value of a field that is there and not null.
const Json* find(const Json& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(field);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<int> get_size(const Json& config, std::string_view field, int64_t limit) {
  EXPERTPLEX_ASSIGN(const int64_t value, get_int(config, field));
  if (value < 1 || value > limit) {
    return make_error(ErrorCode::kInvalidArgument, "field '{}': expected 1 to {}, got {}", field,
                      limit, value);
  }
  return static_cast<int>(value);
}

// A field that may be absent or null, but whose every other value than `allowed` changes the math.
Result<void> demand(const Json& config, std::string_view field, const Json& allowed) {
  const Json* value = find(config, field);
  if (!value || *value == allowed) return {};
  return unsupported("field '{}': this build runs only {}, got {}", field, show(allowed),
                     show(*value));
}

// The same for an array in which every element has to be `allowed`.
Result<void> demand_each(const Json& config, std::string_view field, const Json& allowed) {
  const Json* value = find(config, field);
  if (!value) return {};
  if (!value->is_array()) {
    return make_error(ErrorCode::kInvalidArgument, "field '{}': expected an array, got {}", field,
                      json_type_name(*value));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    if ((*value)[i] != allowed) {
      return unsupported("field '{}': this build runs only {} in every layer, got {} in layer {}",
                         field, show(allowed), show((*value)[i]), i);
    }
  }
  return {};
}

Result<Architecture> read_architecture(const Json& config) {
  struct Known {
    const char* name;
    const char* model_type;
    Architecture architecture;
  };
  static constexpr Known kKnown[] = {
      {"MiniMaxM2ForCausalLM", "minimax_m2", Architecture::kMiniMaxM2},
      {"Qwen3MoeForCausalLM", "qwen3_moe", Architecture::kQwen3Moe},
  };
  const Json* list = find(config, "architectures");
  EXPERTPLEX_ASSIGN(const std::string model_type, get_string_or(config, "model_type", ""));
  std::string name;
  if (list && list->is_array() && !list->empty() && (*list)[0].is_string()) {
    name = (*list)[0].get<std::string>();
  }
  for (const auto& known : kKnown) {
    if (name.empty() ? model_type == known.model_type : name == known.name)
      return known.architecture;
  }
  return unsupported(
      "field '{}': this build runs MiniMaxM2ForCausalLM and Qwen3MoeForCausalLM, got {}",
      name.empty() ? "model_type" : "architectures",
      !name.empty()        ? name
      : model_type.empty() ? "nothing"
                           : model_type);
}

// Everything that either class could carry and that would change the result.
Result<void> refuse_variants(const Json& config) {
  EXPERTPLEX_TRY(demand(config, "hidden_act", "silu"));
  EXPERTPLEX_TRY(demand(config, "attention_bias", false));
  EXPERTPLEX_TRY(demand(config, "use_sliding_window", false));
  EXPERTPLEX_TRY(demand_each(config, "layer_types", "full_attention"));
  EXPERTPLEX_TRY(demand_each(config, "attn_type_list", 1));
  EXPERTPLEX_TRY(demand(config, "decoder_sparse_step", 1));
  EXPERTPLEX_TRY(demand(config, "mlp_only_layers", Json::array()));
  EXPERTPLEX_TRY(demand(config, "first_k_dense_replace", 0));
  EXPERTPLEX_TRY(demand(config, "shared_intermediate_size", 0));
  EXPERTPLEX_TRY(demand(config, "shared_expert_intermediate_size", 0));
  EXPERTPLEX_TRY(demand(config, "n_shared_experts", 0));
  EXPERTPLEX_TRY(demand(config, "routed_scaling_factor", 1.0));
  EXPERTPLEX_TRY(demand(config, "n_group", 1));
  return {};
}

Result<void> read_attention(const Json& config, ModelSpec& spec) {
  EXPERTPLEX_ASSIGN(spec.query_head_count, get_size(config, "num_attention_heads", kMaxHeads));
  EXPERTPLEX_ASSIGN(spec.kv_head_count, get_size(config, "num_key_value_heads", kMaxHeads));
  if (spec.query_head_count % spec.kv_head_count != 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "field 'num_key_value_heads': expected a divisor of num_attention_heads ({}), got {}",
        spec.query_head_count, spec.kv_head_count);
  }
  if (!find(config, "head_dim") && spec.architecture == Architecture::kQwen3Moe &&
      spec.hidden_size % spec.query_head_count == 0) {
    spec.head_dim = spec.hidden_size / spec.query_head_count;
  } else {
    EXPERTPLEX_ASSIGN(spec.head_dim, get_size(config, "head_dim", 1024));
  }
  return {};
}

// rope_theta, rotary_dim and partial_rotary_factor stand at the top level (transformers 4) or in
// rope_parameters (transformers 5).
Result<void> read_rope(const Json& config, ModelSpec& spec) {
  const Json* parameters = find(config, "rope_parameters");
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const Json* scaling = find(config, field);
    if (!scaling) continue;
    if (!scaling->is_object()) {
      return make_error(ErrorCode::kInvalidArgument, "field '{}': expected an object, got {}",
                        field, json_type_name(*scaling));
    }
    for (const char* type : {"rope_type", "type"}) {
      auto plain = demand(*scaling, type, "default");
      if (!plain) return plain.error().in(fmt::format("field '{}'", field));
    }
    for (const auto& [key, value] : scaling->items()) {
      if (value.is_object()) {
        return unsupported(
            "field '{}': this build runs one rotary embedding for all layers, got one "
            "for '{}'",
            field, key);
      }
    }
  }
  const auto pick = [&](const char* field) -> const Json& {
    return parameters && find(*parameters, field) ? *parameters : config;
  };
  EXPERTPLEX_ASSIGN(spec.rope_theta, get_number(pick("rope_theta"), "rope_theta"));
  if (!(spec.rope_theta > 1 && spec.rope_theta <= 1e12)) {
    return make_error(ErrorCode::kInvalidArgument, "field 'rope_theta': expected above 1, got {}",
                      spec.rope_theta);
  }
  const Json& factor_owner = pick("partial_rotary_factor");
  EXPERTPLEX_ASSIGN(const double factor, get_number_or(factor_owner, "partial_rotary_factor", -1));
  const bool has_factor = find(factor_owner, "partial_rotary_factor") != nullptr;
  const auto from_factor = static_cast<int64_t>(spec.head_dim * std::clamp(factor, 0.0, 2.0));
  const bool minimax = spec.architecture == Architecture::kMiniMaxM2;
  if (minimax && !has_factor && !find(config, "rotary_dim")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "field 'rotary_dim': missing, and so is partial_rotary_factor");
  }
  EXPERTPLEX_ASSIGN(const int64_t rotary_dim,
                    get_int_or(config, "rotary_dim", has_factor ? from_factor : spec.head_dim));
  if (has_factor && rotary_dim != from_factor) {
    return make_error(ErrorCode::kInvalidArgument,
                      "field 'rotary_dim': expected {} (head_dim x partial_rotary_factor), got {}",
                      from_factor, rotary_dim);
  }
  if (rotary_dim < 2 || rotary_dim > spec.head_dim || rotary_dim % 2 != 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "field 'rotary_dim': expected an even number of at most head_dim ({}), got {}",
        spec.head_dim, rotary_dim);
  }
  if (!minimax && rotary_dim != spec.head_dim) {
    return unsupported("field 'partial_rotary_factor': Qwen3 turns the whole head, got {} of {}",
                       rotary_dim, spec.head_dim);
  }
  spec.rotary_dim = static_cast<int>(rotary_dim);
  return {};
}

Result<void> read_experts(const Json& config, ModelSpec& spec) {
  const bool both = find(config, "num_experts") && find(config, "num_local_experts");
  if (both && *find(config, "num_experts") != *find(config, "num_local_experts")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "fields 'num_experts' and 'num_local_experts': expected the same number");
  }
  const char* count = find(config, "num_experts") ? "num_experts" : "num_local_experts";
  EXPERTPLEX_ASSIGN(spec.expert_count, get_size(config, count, kMaxExperts));
  EXPERTPLEX_ASSIGN(spec.experts_per_token,
                    get_size(config, "num_experts_per_tok", spec.expert_count));
  const bool minimax = spec.architecture == Architecture::kMiniMaxM2;
  EXPERTPLEX_ASSIGN(
      spec.expert_intermediate_size,
      get_size(config, minimax ? "intermediate_size" : "moe_intermediate_size", kMaxWidth));
  if (minimax) {
    EXPERTPLEX_TRY(demand(config, "scoring_func", "sigmoid"));
    EXPERTPLEX_TRY(demand(config, "use_qk_norm", true));
    EXPERTPLEX_TRY(demand(config, "qk_norm_type", "per_layer"));
    EXPERTPLEX_TRY(demand(config, "sliding_window", nullptr));
    EXPERTPLEX_ASSIGN(spec.router_bias, get_bool_or(config, "use_routing_bias", true));
    spec.qk_norm = QkNorm::kWholeProjection;
    spec.router_score = RouterScore::kSigmoid;
    spec.renormalize = true;
  } else {
    spec.qk_norm = QkNorm::kPerHead;
    spec.router_score = RouterScore::kSoftmax;
    EXPERTPLEX_ASSIGN(spec.renormalize, get_bool_or(config, "norm_topk_prob", false));
  }
  return {};
}

Result<void> read_quantization(const Json& config, ModelSpec& spec) {
  const Json* quantization = find(config, "quantization_config");
  if (!quantization) return {};
  if (!quantization->is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object, got {}",
                      json_type_name(*quantization));
  }
  EXPERTPLEX_ASSIGN(const std::string method, get_string(*quantization, "quant_method"));
  if (method != "fp8") {
    return unsupported("field 'quant_method': this build runs fp8 with 128 x 128 tiles, got {}",
                       method);
  }
  if (!find(*quantization, "weight_block_size")) {
    return unsupported("field 'weight_block_size': this build runs only [128,128], got none");
  }
  EXPERTPLEX_TRY(
      demand(*quantization, "weight_block_size", Json::array({kFp8ScaleTile, kFp8ScaleTile})));
  EXPERTPLEX_TRY(demand(*quantization, "activation_scheme", "dynamic"));
  EXPERTPLEX_TRY(demand(*quantization, "scale_fmt", "float"));
  const Json* format = find(*quantization, "fmt");
  if (format && *format != "e4m3") EXPERTPLEX_TRY(demand(*quantization, "fmt", "float8_e4m3fn"));
  spec.fp8_weights = true;
  return {};
}

// eos_token_id as a number, a list of numbers, or null.
Result<std::vector<int32_t>> read_eos(const Json& config, int vocab_size) {
  std::vector<int32_t> ids;
  const Json* value = find(config, "eos_token_id");
  if (!value) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const auto& item : list) {
    if (!item.is_number_integer() || item < 0 || item >= vocab_size) {
      return make_error(ErrorCode::kInvalidArgument,
                        "field 'eos_token_id': expected ids of 0 to {}, got {}", vocab_size - 1,
                        show(item));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

Result<ModelSpec> read_config(const Json& config) {
  if (!config.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object, got {}",
                      json_type_name(config));
  }
  ModelSpec spec;
  EXPERTPLEX_ASSIGN(spec.architecture, read_architecture(config));
  EXPERTPLEX_TRY(refuse_variants(config));
  EXPERTPLEX_ASSIGN(spec.layer_count, get_size(config, "num_hidden_layers", kMaxLayers));
  EXPERTPLEX_ASSIGN(spec.hidden_size, get_size(config, "hidden_size", kMaxWidth));
  EXPERTPLEX_ASSIGN(spec.vocab_size, get_size(config, "vocab_size", kMaxVocab));
  EXPERTPLEX_ASSIGN(spec.max_position_count,
                    get_size(config, "max_position_embeddings", kMaxPositions));
  EXPERTPLEX_ASSIGN(const double eps, get_number_or(config, "rms_norm_eps", 1e-6));
  if (!(eps > 0 && eps < 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "field 'rms_norm_eps': expected above 0 and below 1, got {}", eps);
  }
  spec.rms_norm_eps = static_cast<float>(eps);
  EXPERTPLEX_ASSIGN(spec.tied_embeddings, get_bool_or(config, "tie_word_embeddings", false));
  EXPERTPLEX_TRY(read_attention(config, spec));
  EXPERTPLEX_TRY(read_rope(config, spec));
  EXPERTPLEX_TRY(read_experts(config, spec));
  auto quantization = read_quantization(config, spec);
  if (!quantization) return quantization.error().in("field 'quantization_config'");
  EXPERTPLEX_ASSIGN(spec.eos_token_ids, read_eos(config, spec.vocab_size));
  return spec;
}

}  // namespace

Result<ModelSpec> load_model_spec(const std::string& directory) {
  const fs::path root(directory);
  const std::string config_path = (root / "config.json").string();
  EXPERTPLEX_ASSIGN(const Json config, read_json_file(config_path));
  auto spec = read_config(config);
  if (!spec) return spec.error().in(config_path);

  const std::string generation_path = (root / "generation_config.json").string();
  EXPERTPLEX_ASSIGN(const bool has_generation, file_exists(generation_path));
  if (has_generation) {
    EXPERTPLEX_ASSIGN(const Json generation, read_json_file(generation_path));
    auto ids = read_eos(generation, spec->vocab_size);
    if (!ids) return ids.error().in(generation_path);
    if (!ids->empty()) spec->eos_token_ids = std::move(*ids);
  }

  std::error_code ignored;
  const fs::path whole = fs::absolute(root, ignored).lexically_normal();
  spec->name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return spec;
}

ParameterCount count_parameters(const ModelSpec& spec) {
  const int64_t layers = spec.layer_count;
  const int64_t hidden = spec.hidden_size;
  const int64_t embedding = int64_t{spec.vocab_size} * hidden;
  const int64_t attention = hidden * (2 * spec.query_size() + 2 * spec.kv_size());
  int64_t qk_norms = 0;
  if (spec.qk_norm == QkNorm::kPerHead) qk_norms = 2 * spec.head_dim;
  if (spec.qk_norm == QkNorm::kWholeProjection) qk_norms = spec.query_size() + spec.kv_size();
  const int64_t router = spec.expert_count * hidden + (spec.router_bias ? spec.expert_count : 0);
  const int64_t expert = 3 * hidden * spec.expert_intermediate_size;

  ParameterCount count;
  count.routed_experts = layers * spec.expert_count * expert;
  const int64_t always_active = layers * (attention + qk_norms + router + 2 * hidden) + hidden +
                                embedding;  // the LM head, or the embedding that stands in for it
  count.active_per_token = always_active + layers * spec.experts_per_token * expert;
  count.total = always_active + count.routed_experts + (spec.tied_embeddings ? 0 : embedding);
  return count;
}

}  // namespace expertplex
