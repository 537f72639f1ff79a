#include "model/weights.h"

#include <cmath>
#include <deque>
#include <set>

#include "base/log.h"
#include "model/checkpoint.h"

namespace expertplex {
namespace {

// What ModelWeights::storage points to: the mappings, and copies of what cannot be used in place.
struct Storage {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::deque<std::vector<float>> scales;
  std::deque<std::vector<std::byte>> aligned;
};

// Where each architecture puts the parts of its expert module.
struct ExpertNames {
  const char* module;
  const char* gate;
  const char* up;
  const char* down;
};
ExpertNames expert_names(Architecture architecture) {
  switch (architecture) {
    case Architecture::kMiniMaxM2:
      return {"block_sparse_moe", "w1", "w3", "w2"};
    case Architecture::kQwen3Moe:
      return {"mlp", "gate_proj", "up_proj", "down_proj"};
  }
  EXPERTPLEX_CHECK(false, "architecture {}", static_cast<int>(architecture));
}

// Whether a matrix may come as FP8: embedding, LM head and router never do.
enum class Fp8 { kAllowed, kNever };

class Loader {
 public:
  Loader(std::shared_ptr<const Checkpoint> checkpoint, const ModelSpec& spec)
      : checkpoint_(std::move(checkpoint)), spec_(spec), storage_(std::make_shared<Storage>()) {
    storage_->checkpoint = checkpoint_;
  }

  Result<std::shared_ptr<const ModelWeights>> load();

 private:
  Result<LayerWeights> load_layer(int index);
  Result<ExpertWeights> load_expert(const std::string& module, int index);
  Result<LinearWeight> load_linear(const std::string& name, int out, int in, Fp8 fp8);
  Result<const float*> load_scales(const std::string& name, int out, int in);
  Result<std::vector<float>> load_vector(const std::string& name, int64_t size);
  Result<Checkpoint::Location> require(const std::string& name, std::vector<int64_t> shape);
  Result<void> check_expert_types(const ModelWeights& weights) const;
  void report_extra_tensors() const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelSpec& spec_;
  std::shared_ptr<Storage> storage_;
  std::set<const StoredTensor*> used_;
};

template <typename... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// The tensor, if it is there and has this shape.
Result<Checkpoint::Location> Loader::require(const std::string& name, std::vector<int64_t> shape) {
  const auto location = checkpoint_->find(name);
  if (!location.tensor) {
    return refused(
        "{}: tensor '{}' is missing; expected shape {}. The checkpoint is incomplete or not "
        "of the class that config.json names",
        checkpoint_->directory(), name, describe_shape(shape));
  }
  if (location.tensor->shape != shape) {
    return refused("{}: tensor '{}': config.json implies shape {}, got {}", location.file->path(),
                   name, describe_shape(shape), describe(*location.tensor));
  }
  used_.insert(location.tensor);
  return location;
}

Result<std::vector<float>> Loader::load_vector(const std::string& name, int64_t size) {
  EXPERTPLEX_ASSIGN(const auto location, require(name, {size}));
  switch (location.tensor->type) {
    case StoredType::kF32:
    case StoredType::kBf16:
    case StoredType::kF16:
      return to_floats(*location.tensor);
    default:
      return refused("{}: tensor '{}': expected F32, BF16 or F16, got {}", location.file->path(),
                     name, describe(*location.tensor));
  }
}

Result<const float*> Loader::load_scales(const std::string& weight_name, int out, int in) {
  const std::string name = weight_name + "_scale_inv";
  const int64_t rows = (out + kFp8ScaleTile - 1) / kFp8ScaleTile;
  const int64_t columns = (in + kFp8ScaleTile - 1) / kFp8ScaleTile;
  if (!checkpoint_->find(name).tensor) {
    return refused(
        "{}: scale '{}' of an F8_E4M3 weight is missing; expected shape {}. Without it the "
        "weight has no value",
        checkpoint_->find(weight_name).file->path(), name,
        describe_shape(std::vector<int64_t>{rows, columns}));
  }
  EXPERTPLEX_ASSIGN(const auto location, require(name, {rows, columns}));
  const StoredType type = location.tensor->type;
  if (type != StoredType::kF32 && type != StoredType::kBf16 && type != StoredType::kF8E8m0) {
    return refused("{}: tensor '{}': expected F32, BF16 or F8_E8M0, got {}", location.file->path(),
                   name, describe(*location.tensor));
  }
  EXPERTPLEX_ASSIGN(auto scales, to_floats(*location.tensor));
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i])) {
      return refused("{}: tensor '{}': expected finite scales, got {} at element {}",
                     location.file->path(), name, scales[i], i);
    }
  }
  storage_->scales.push_back(std::move(scales));
  return storage_->scales.back().data();
}

Result<LinearWeight> Loader::load_linear(const std::string& name, int out, int in, Fp8 fp8) {
  EXPERTPLEX_ASSIGN(const auto location, require(name, {out, in}));
  const StoredTensor& tensor = *location.tensor;
  LinearWeight weight;
  weight.out_features = out;
  weight.in_features = in;
  switch (tensor.type) {
    case StoredType::kF32:
      weight.type = DataType::kF32;
      break;
    case StoredType::kBf16:
      weight.type = DataType::kBf16;
      break;
    case StoredType::kF16:
      weight.type = DataType::kF16;
      break;
    case StoredType::kF8E4m3:
      weight.type = DataType::kFp8E4m3;
      if (fp8 == Fp8::kAllowed && spec_.fp8_weights) break;
      return refused("{}: tensor '{}': expected F32, BF16 or F16{}, got {}", location.file->path(),
                     name,
                     fp8 == Fp8::kNever ? "" : " (config.json has no fp8 quantization_config)",
                     describe(tensor));
    default:
      return refused("{}: tensor '{}': expected F32, BF16, F16 or F8_E4M3, got {}",
                     location.file->path(), name, describe(tensor));
  }
  if (weight.type == DataType::kFp8E4m3) {
    EXPERTPLEX_ASSIGN(weight.scales, load_scales(name, out, in));
  } else if (checkpoint_->find(name + "_scale_inv").tensor) {
    return refused("{}: tensor '{}': has a weight_scale_inv, expected F8_E4M3, got {}",
                   location.file->path(), name, describe(tensor));
  }
  weight.data = tensor.data;
  if (reinterpret_cast<uintptr_t>(tensor.data) % data_type_bytes(weight.type) != 0) {
    storage_->aligned.emplace_back(tensor.data, tensor.data + tensor.byte_count);
    weight.data = storage_->aligned.back().data();
  }
  return weight;
}

Result<ExpertWeights> Loader::load_expert(const std::string& module, int index) {
  const ExpertNames names = expert_names(spec_.architecture);
  const auto name = [&](const char* part) {
    return fmt::format("{}.experts.{}.{}.weight", module, index, part);
  };
  const int hidden = spec_.hidden_size;
  const int intermediate = spec_.expert_intermediate_size;
  ExpertWeights expert;
  EXPERTPLEX_ASSIGN(expert.gate,
                    load_linear(name(names.gate), intermediate, hidden, Fp8::kAllowed));
  EXPERTPLEX_ASSIGN(expert.up, load_linear(name(names.up), intermediate, hidden, Fp8::kAllowed));
  EXPERTPLEX_ASSIGN(expert.down,
                    load_linear(name(names.down), hidden, intermediate, Fp8::kAllowed));
  return expert;
}

Result<LayerWeights> Loader::load_layer(int index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::string attention = prefix + "self_attn.";
  const std::string module = prefix + expert_names(spec_.architecture).module;
  const int hidden = spec_.hidden_size;
  LayerWeights layer;
  EXPERTPLEX_ASSIGN(layer.input_norm, load_vector(prefix + "input_layernorm.weight", hidden));
  EXPERTPLEX_ASSIGN(layer.query, load_linear(attention + "q_proj.weight", spec_.query_size(),
                                             hidden, Fp8::kAllowed));
  EXPERTPLEX_ASSIGN(
      layer.key, load_linear(attention + "k_proj.weight", spec_.kv_size(), hidden, Fp8::kAllowed));
  EXPERTPLEX_ASSIGN(layer.value, load_linear(attention + "v_proj.weight", spec_.kv_size(), hidden,
                                             Fp8::kAllowed));
  EXPERTPLEX_ASSIGN(layer.output, load_linear(attention + "o_proj.weight", hidden,
                                              spec_.query_size(), Fp8::kAllowed));
  if (spec_.qk_norm != QkNorm::kNone) {
    const bool per_head = spec_.qk_norm == QkNorm::kPerHead;
    const int query_norm_size = per_head ? spec_.head_dim : spec_.query_size();
    const int key_norm_size = per_head ? spec_.head_dim : spec_.kv_size();
    EXPERTPLEX_ASSIGN(layer.query_norm, load_vector(attention + "q_norm.weight", query_norm_size));
    EXPERTPLEX_ASSIGN(layer.key_norm, load_vector(attention + "k_norm.weight", key_norm_size));
  }
  EXPERTPLEX_ASSIGN(layer.post_attention_norm,
                    load_vector(prefix + "post_attention_layernorm.weight", hidden));
  EXPERTPLEX_ASSIGN(layer.router,
                    load_linear(module + ".gate.weight", spec_.expert_count, hidden, Fp8::kNever));
  if (spec_.router_bias) {
    EXPERTPLEX_ASSIGN(layer.router_bias,
                      load_vector(module + ".e_score_correction_bias", spec_.expert_count));
  }
  for (int expert = 0; expert < spec_.expert_count; ++expert) {
    EXPERTPLEX_ASSIGN(auto weights, load_expert(module, expert));
    layer.experts.push_back(weights);
  }
  return layer;
}

// One grouped GEMM runs all experts of a layer, so they have one type; FP8 where the config says
// so.
Result<void> Loader::check_expert_types(const ModelWeights& weights) const {
  const DataType expected =
      spec_.fp8_weights ? DataType::kFp8E4m3 : weights.layers[0].experts[0].gate.type;
  const ExpertNames names = expert_names(spec_.architecture);
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const auto& experts = weights.layers[layer].experts;
    for (size_t e = 0; e < experts.size(); ++e) {
      for (const auto& [weight, name] :
           {std::pair{&experts[e].gate, names.gate}, std::pair{&experts[e].up, names.up},
            std::pair{&experts[e].down, names.down}}) {
        if (weight->type == expected) continue;
        return refused(
            "{}: tensor 'model.layers.{}.{}.experts.{}.{}.weight': expected {} as {}, got {}",
            checkpoint_->directory(), layer, names.module, e, name, data_type_name(expected),
            spec_.fp8_weights ? "config.json's quantization_config says" : "in the first expert",
            data_type_name(weight->type));
      }
    }
  }
  return {};
}

void Loader::report_extra_tensors() const {
  size_t extra = 0;
  std::string first;
  for (const auto& [name, location] : checkpoint_->tensors()) {
    if (used_.count(location.tensor)) continue;
    if (extra++ == 0) first = name;
  }
  if (extra > 0) {
    log_debug("{}: {} tensors are not used, '{}' the first", checkpoint_->directory(), extra,
              first);
  }
}

Result<std::shared_ptr<const ModelWeights>> Loader::load() {
  auto weights = std::make_shared<ModelWeights>();
  EXPERTPLEX_ASSIGN(weights->embedding, load_linear("model.embed_tokens.weight", spec_.vocab_size,
                                                    spec_.hidden_size, Fp8::kNever));
  for (int layer = 0; layer < spec_.layer_count; ++layer) {
    EXPERTPLEX_ASSIGN(auto loaded, load_layer(layer));
    weights->layers.push_back(std::move(loaded));
  }
  EXPERTPLEX_ASSIGN(weights->final_norm, load_vector("model.norm.weight", spec_.hidden_size));
  if (spec_.tied_embeddings) {
    weights->lm_head = weights->embedding;
  } else {
    EXPERTPLEX_ASSIGN(weights->lm_head, load_linear("lm_head.weight", spec_.vocab_size,
                                                    spec_.hidden_size, Fp8::kNever));
  }
  EXPERTPLEX_TRY(check_expert_types(*weights));
  report_extra_tensors();
  weights->checkpoint_bytes = checkpoint_->byte_count();
  weights->storage = storage_;
  return std::shared_ptr<const ModelWeights>(std::move(weights));
}

}  // namespace

Result<std::shared_ptr<const ModelWeights>> load_model_weights(const std::string& directory,
                                                               const ModelSpec& spec,
                                                               const LoadProgress& progress) {
  EXPERTPLEX_CHECK(spec.layer_count > 0 && spec.expert_count > 0, "an empty ModelSpec");
  EXPERTPLEX_ASSIGN(auto checkpoint, Checkpoint::open(directory));
  EXPERTPLEX_ASSIGN(auto weights, Loader(checkpoint, spec).load());
  checkpoint->read_ahead(progress);
  return weights;
}

}  // namespace expertplex
