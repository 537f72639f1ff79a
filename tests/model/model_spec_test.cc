#include "model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "golden_files.h"
#include "temp_directory.h"

namespace expertplex {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The sizes of MiniMax-M2, as its config.json has them.
Json minimax_m2() {
  return Json::parse(R"({
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2",
    "attn_type_list": [1, 1, 1], "eos_token_id": 200020, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
    "shared_intermediate_size": 0, "tie_word_embeddings": false, "use_mtp": true,
    "num_mtp_modules": 3, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn",
      "quant_method": "fp8", "weight_block_size": [128, 128],
      "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}})");
}

Json qwen3_30b_a3b() {
  return Json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
    "use_sliding_window": false, "vocab_size": 151936})");
}

Result<ModelSpec> load(const Json& config, const std::string& generation = "") {
  TempDirectory directory;
  directory.write("config.json", config.dump());
  if (!generation.empty()) directory.write("generation_config.json", generation);
  return load_model_spec(directory.path());
}

TEST(ModelSpec, MiniMaxM2) {
  const auto spec = load(minimax_m2());
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, Architecture::kMiniMaxM2);
  EXPECT_EQ(spec->layer_count, 62);
  EXPECT_EQ(spec->query_size(), 6144);
  EXPECT_EQ(spec->kv_size(), 1024);
  EXPECT_EQ(spec->rotary_dim, 64);
  EXPECT_EQ(spec->rope_theta, 5e6);
  EXPECT_EQ(spec->qk_norm, QkNorm::kWholeProjection);
  EXPECT_EQ(spec->router_score, RouterScore::kSigmoid);
  EXPECT_TRUE(spec->router_bias);
  EXPECT_TRUE(spec->renormalize);
  EXPECT_TRUE(spec->fp8_weights);
  EXPECT_EQ(spec->expert_intermediate_size, 1536);
  EXPECT_THAT(spec->eos_token_ids, ElementsAre(200020));
}

TEST(ModelSpec, Qwen3Moe) {
  const auto spec = load(qwen3_30b_a3b(), R"({"eos_token_id": [151645, 151643]})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(spec->rotary_dim, 128);
  EXPECT_EQ(spec->qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(spec->router_score, RouterScore::kSoftmax);
  EXPECT_FALSE(spec->router_bias);
  EXPECT_TRUE(spec->renormalize);
  EXPECT_FALSE(spec->fp8_weights);
  EXPECT_THAT(spec->eos_token_ids, ElementsAre(151645, 151643));
}

TEST(ModelSpec, ParameterCountsOfPublishedModels) {
  const auto minimax = count_parameters(*load(minimax_m2()));
  EXPECT_EQ((minimax.total + 5'000'000) / 10'000'000, 22869);  // 228.69B
  EXPECT_EQ((minimax.routed_experts + 5'000'000) / 10'000'000, 22468);
  EXPECT_EQ((minimax.active_per_token + 5'000'000) / 10'000'000, 1042);
  const auto qwen = count_parameters(*load(qwen3_30b_a3b()));
  EXPECT_EQ(qwen.total, 30'532'122'624);  // as the model card's safetensors metadata says
  EXPECT_EQ((qwen.routed_experts + 5'000'000) / 10'000'000, 2899);
  EXPECT_EQ((qwen.active_per_token + 5'000'000) / 10'000'000, 304);
}

TEST(ModelSpec, RopeAsTransformersFiveWritesIt) {
  Json config = minimax_m2();
  config.erase("rope_theta");
  config.erase("rotary_dim");
  config["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}};
  const auto spec = load(config);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->rope_theta, 1e6);
  EXPECT_EQ(spec->rotary_dim, 64);
}

TEST(ModelSpec, DefaultsAndOtherSpellings) {
  Json config = qwen3_30b_a3b();
  config.erase("architectures");  // model_type is enough
  config.erase("head_dim");
  config.erase("norm_topk_prob");
  config["num_local_experts"] = 128;
  config["eos_token_id"] = nullptr;
  const auto spec = load(config, R"({"do_sample": true})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->head_dim, 64);
  EXPECT_FALSE(spec->renormalize);
  EXPECT_TRUE(spec->eos_token_ids.empty());
}

struct Refusal {
  const char* what;
  std::function<void(Json&)> change;
  const char* message;
};

void expect_refused(const Json& base, const std::vector<Refusal>& refusals) {
  for (const auto& refusal : refusals) {
    Json config = base;
    refusal.change(config);
    const auto spec = load(config);
    ASSERT_FALSE(spec) << refusal.what;
    EXPECT_THAT(spec.error().message, HasSubstr("config.json: ")) << refusal.what;
    EXPECT_THAT(spec.error().message, HasSubstr(refusal.message)) << refusal.what;
  }
}

TEST(ModelSpec, RefusesWhatItCannotRunExactly) {
  expect_refused(
      qwen3_30b_a3b(),
      {
          {"class", [](Json& c) { c["architectures"] = {"LlamaForCausalLM"}; },
           "this build runs MiniMaxM2ForCausalLM and Qwen3MoeForCausalLM, got LlamaForCausalLM"},
          {"activation", [](Json& c) { c["hidden_act"] = "gelu"; },
           "field 'hidden_act': this build runs only \"silu\", got \"gelu\""},
          {"bias", [](Json& c) { c["attention_bias"] = true; }, "field 'attention_bias'"},
          {"window", [](Json& c) { c["use_sliding_window"] = true; }, "field 'use_sliding_window'"},
          {"yarn",
           [](Json& c) {
             c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
           },
           "field 'rope_scaling': field 'rope_type': this build runs only \"default\", got "
           "\"yarn\""},
          {"old yarn",
           [](Json& c) {
             c["rope_scaling"] = {{"type", "yarn"}};
           },
           "field 'type'"},
          {"dense layers", [](Json& c) { c["mlp_only_layers"] = {0}; }, "field 'mlp_only_layers'"},
          {"sparse step", [](Json& c) { c["decoder_sparse_step"] = 2; },
           "field 'decoder_sparse_step'"},
          {"shared expert", [](Json& c) { c["shared_expert_intermediate_size"] = 768; },
           "field 'shared_expert_intermediate_size'"},
          {"layer types",
           [](Json& c) {
             c["layer_types"] = {"full_attention", "sliding_attention"};
           },
           "got \"sliding_attention\" in layer 1"},
          {"awq",
           [](Json& c) {
             c["quantization_config"] = {{"quant_method", "awq"}};
           },
           "field 'quantization_config': field 'quant_method': this build runs fp8 with 128 x 128 "
           "tiles"},
          {"fp8 per tensor",
           [](Json& c) {
             c["quantization_config"] = {{"quant_method", "fp8"}};
           },
           "field 'weight_block_size'"},
          {"other tiles",
           [](Json& c) {
             c["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {64, 128}}};
           },
           "this build runs only [128,128], got [64,128]"},
          {"partial rotary", [](Json& c) { c["partial_rotary_factor"] = 0.5; },
           "field 'partial_rotary_factor'"},
      });
  expect_refused(
      minimax_m2(),
      {
          {"score", [](Json& c) { c["scoring_func"] = "softmax"; }, "field 'scoring_func'"},
          {"qk norm", [](Json& c) { c["qk_norm_type"] = "per_head"; }, "field 'qk_norm_type'"},
          {"linear attention", [](Json& c) { c["attn_type_list"][1] = 0; }, "got 0 in layer 1"},
          {"window", [](Json& c) { c["sliding_window"] = 4096; }, "field 'sliding_window'"},
          {"no rotary dim", [](Json& c) { c.erase("rotary_dim"); }, "field 'rotary_dim': missing"},
      });
}

TEST(ModelSpec, RefusesBrokenValues) {
  expect_refused(
      qwen3_30b_a3b(),
      {
          {"missing", [](Json& c) { c.erase("hidden_size"); }, "field 'hidden_size': missing"},
          {"type", [](Json& c) { c["hidden_size"] = "2048"; },
           "field 'hidden_size': expected an integer, got a string"},
          {"negative", [](Json& c) { c["num_hidden_layers"] = -1; },
           "field 'num_hidden_layers': expected 1 to 1024, got -1"},
          {"huge", [](Json& c) { c["vocab_size"] = 1'000'000'000'000; }, "field 'vocab_size'"},
          {"heads", [](Json& c) { c["num_key_value_heads"] = 5; },
           "field 'num_key_value_heads': expected a divisor of num_attention_heads (32), got 5"},
          {"top-k", [](Json& c) { c["num_experts_per_tok"] = 129; }, "expected 1 to 128, got 129"},
          {"experts twice", [](Json& c) { c["num_local_experts"] = 64; },
           "expected the same number"},
          {"theta", [](Json& c) { c["rope_theta"] = 0; }, "field 'rope_theta'"},
          {"eps", [](Json& c) { c["rms_norm_eps"] = 0; },
           "field 'rms_norm_eps': expected above 0 and below 1, got 0"},
          {"a huge value", [](Json& c) { c["hidden_act"] = std::string(5000, 'x'); }, "xxx..."},
          {"eos",
           [](Json& c) {
             c["eos_token_id"] = {1, 151936};
           },
           "field 'eos_token_id': expected ids of 0 to 151935, got 151936"},
      });
  expect_refused(minimax_m2(),
                 {
                     {"odd rotary", [](Json& c) { c["rotary_dim"] = 63; },
                      "field 'rotary_dim': expected an even number"},
                     {"large rotary", [](Json& c) { c["rotary_dim"] = 130; },
                      "at most head_dim (128), got 130"},
                     {"disagreement", [](Json& c) { c["partial_rotary_factor"] = 0.25; },
                      "field 'rotary_dim': expected 32 (head_dim x partial_rotary_factor), got 64"},
                 });
  expect_refused(Json::array(), {{"array", [](Json&) {}, "expected an object, got an array"}});
}

TEST(ModelSpec, NamesTheFileThatIsMissingOrBroken) {
  TempDirectory directory;
  EXPECT_THAT(load_model_spec(directory.path()).error().message,
              HasSubstr("config.json: cannot open"));
  directory.write("config.json", "{\"a\": ");
  EXPECT_THAT(load_model_spec(directory.path()).error().message,
              HasSubstr("config.json: not valid JSON"));
  directory.write("config.json", qwen3_30b_a3b().dump());
  directory.write("generation_config.json", "[");
  EXPECT_THAT(load_model_spec(directory.path()).error().message,
              HasSubstr("generation_config.json: not valid JSON"));
}

TEST(ModelSpec, NameIsTheLastComponent) {
  const std::string directory = golden_directory("qwen3_moe");
  EXPECT_EQ(load_model_spec(directory)->name, "qwen3_moe");
  EXPECT_EQ(load_model_spec(directory + "/")->name, "qwen3_moe");
  EXPECT_EQ(load_model_spec(directory + "/../qwen3_moe/.")->name, "qwen3_moe");
}

}  // namespace
}  // namespace expertplex
