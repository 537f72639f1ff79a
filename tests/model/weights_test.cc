#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>

#include "base/number_formats.h"
#include "golden_files.h"
#include "model/safetensors.h"
#include "temp_directory.h"

namespace expertplex {
namespace {

using testing::HasSubstr;

Result<std::shared_ptr<const ModelWeights>> load(const std::string& directory) {
  EXPERTPLEX_ASSIGN(const ModelSpec spec, load_model_spec(directory));
  return load_model_weights(directory, spec);
}

class GoldenWeights : public testing::TestWithParam<const char*> {};

TEST_P(GoldenWeights, EveryTensorHasTheShapeOfTheSpec) {
  const std::string directory = golden_directory(GetParam());
  const auto spec = load_model_spec(directory);
  ASSERT_TRUE(spec) << spec.error().message;
  int64_t last = -1;
  int64_t total = 0;
  const auto weights = load_model_weights(directory, *spec, [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(last, total);
  EXPECT_EQ((*weights)->checkpoint_bytes, total);
  ASSERT_EQ((*weights)->layers.size(), static_cast<size_t>(spec->layer_count));
  const auto& layer = (*weights)->layers.back();
  EXPECT_EQ(layer.query.out_features, spec->query_size());
  EXPECT_EQ(layer.output.in_features, spec->query_size());
  EXPECT_EQ(
      layer.query_norm.size(),
      static_cast<size_t>(spec->qk_norm == QkNorm::kPerHead ? spec->head_dim : spec->query_size()));
  EXPECT_EQ(layer.router_bias.size(),
            spec->router_bias ? static_cast<size_t>(spec->expert_count) : 0u);
  ASSERT_EQ(layer.experts.size(), static_cast<size_t>(spec->expert_count));
  const auto& expert = layer.experts.back();
  EXPECT_EQ(expert.gate.out_features, spec->expert_intermediate_size);
  EXPECT_EQ(expert.down.out_features, spec->hidden_size);
  EXPECT_EQ(expert.gate.scales != nullptr, spec->fp8_weights);
  EXPECT_EQ(expert.gate.type == DataType::kFp8E4m3, spec->fp8_weights);
  EXPECT_EQ((*weights)->lm_head.data == (*weights)->embedding.data, spec->tied_embeddings);
  EXPECT_EQ((*weights)->lm_head.out_features, spec->vocab_size);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenWeights,
                         testing::Values("minimax_m2", "qwen3_moe", "minimax_m2_fp8",
                                         "qwen3_moe_fp8", "minimax_m2_bf16", "qwen3_moe_bf16_tied"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Weights, GateAndUpAreNotExchanged) {
  const std::string directory = golden_directory("minimax_m2");
  const auto file = SafetensorsFile::open(directory + "/model.safetensors");
  const auto weights = load(directory);
  ASSERT_TRUE(file && weights);
  const auto name = [](const char* part) {
    return fmt::format("model.layers.1.block_sparse_moe.experts.5.{}.weight", part);
  };
  const auto& expert = (*weights)->layers[1].experts[5];
  const auto same_bytes = [&](const LinearWeight& weight, const char* part) {
    const StoredTensor* tensor = (*file)->find(name(part));
    return std::memcmp(weight.data, tensor->data, static_cast<size_t>(tensor->byte_count)) == 0;
  };
  EXPECT_TRUE(same_bytes(expert.gate, "w1"));
  EXPECT_TRUE(same_bytes(expert.up, "w3"));
  EXPECT_TRUE(same_bytes(expert.down, "w2"));
}

TEST(Weights, SurviveTheFilesDirectory) {
  std::shared_ptr<const ModelWeights> weights;
  {
    TempDirectory directory;
    directory.copy_from(golden_directory("qwen3_moe"));
    weights = *load(directory.path());
  }
  EXPECT_NE(static_cast<const float*>(weights->layers[0].query.data)[0], 0.0f);
}

// A change to a copy of a golden model, and what the refusal says.
struct Broken {
  const char* what;
  const char* model;
  std::function<void(EditableTensors&)> change;
  std::vector<const char*> message;
};

const std::string kExpert = "model.layers.0.block_sparse_moe.experts.1.w2.weight";
const std::string kQwenExpert = "model.layers.1.mlp.experts.2.gate_proj.weight";

TEST(Weights, RefusesBrokenCheckpoints) {
  const std::vector<Broken> cases = {
      {"missing norm",
       "minimax_m2",
       [](auto& t) { t.erase("model.norm.weight"); },
       {"tensor 'model.norm.weight' is missing", "expected shape [64]"}},
      {"missing expert",
       "minimax_m2",
       [](auto& t) { t.erase(kExpert); },
       {"tensor '", "experts.1.w2.weight' is missing; expected shape [64, 32]"}},
      {"missing head",
       "minimax_m2",
       [](auto& t) { t.erase("lm_head.weight"); },
       {"tensor 'lm_head.weight' is missing"}},
      {"missing bias",
       "minimax_m2",
       [](auto& t) { t.erase("model.layers.2.block_sparse_moe.e_score_correction_bias"); },
       {"e_score_correction_bias' is missing"}},
      {"wrong shape",
       "minimax_m2",
       [](auto& t) { std::swap(t.at(kExpert).shape[0], t.at(kExpert).shape[1]); },
       {"model.safetensors: tensor '", "config.json implies shape [64, 32], got F32 [32, 64]"}},
      {"integer weights",
       "minimax_m2",
       [](auto& t) { t.at(kExpert).dtype = "I32"; },
       {"expected F32, BF16, F16 or F8_E4M3, got I32 [64, 32]"}},
      {"integer norm",
       "minimax_m2",
       [](auto& t) { t.at("model.norm.weight").dtype = "U32"; },
       {"expected F32, BF16 or F16, got U32 [64]"}},
      {"fp8 without config",
       "minimax_m2_bf16",
       [](auto& t) {
         t.at(kExpert).dtype = "F8_E4M3";
         t.at(kExpert).bytes.resize(64 * 32);
       },
       {"config.json has no fp8 quantization_config", "got F8_E4M3"}},
      {"missing scale",
       "qwen3_moe_fp8",
       [](auto& t) { t.erase(kQwenExpert + "_scale_inv"); },
       {"scale 'model.layers.1.mlp.experts.2.gate_proj.weight_scale_inv' of an F8_E4M3 weight is "
        "missing",
        "expected shape [1, 2]"}},
      {"scale of wrong shape",
       "qwen3_moe_fp8",
       [](auto& t) {
         std::swap(t.at(kQwenExpert + "_scale_inv").shape[0],
                   t.at(kQwenExpert + "_scale_inv").shape[1]);
       },
       {"weight_scale_inv': config.json implies shape [1, 2], got BF16 [2, 1]"}},
      {"scale of wrong type",
       "qwen3_moe_fp8",
       [](auto& t) { t.at(kQwenExpert + "_scale_inv").dtype = "F16"; },
       {"expected F32, BF16 or F8_E8M0, got F16"}},
      {"scale not finite",
       "qwen3_moe_fp8",
       [](auto& t) { t.at(kQwenExpert + "_scale_inv").bytes = std::string("\x80\x3F\xC0\x7F", 4); },
       {"expected finite scales, got nan at element 1"}},
      {"expert not quantised",
       "qwen3_moe_fp8",
       [](auto& t) {
         t.at(kQwenExpert).dtype = "BF16";
         t.at(kQwenExpert).bytes.resize(128 * 256 * 2);
         t.erase(kQwenExpert + "_scale_inv");
       },
       {"expected F8_E4M3 as config.json's quantization_config says, got BF16"}},
      {"scale of a plain weight",
       "qwen3_moe_fp8",
       [](auto& t) {
         t.at(kQwenExpert).dtype = "BF16";
         t.at(kQwenExpert).bytes.resize(128 * 256 * 2);
       },
       {"has a weight_scale_inv, expected F8_E4M3, got BF16"}},
      {"fp8 embedding",
       "qwen3_moe_fp8",
       [](auto& t) {
         t.at("model.embed_tokens.weight").dtype = "F8_E4M3";
         t.at("model.embed_tokens.weight").bytes.resize(384 * 256);
       },
       {"tensor 'model.embed_tokens.weight': expected F32, BF16 or F16, got F8_E4M3"}},
  };
  for (const auto& broken : cases) {
    TempDirectory directory;
    directory.copy_from(golden_directory(broken.model));
    EditableTensors tensors(directory.read("model.safetensors"));
    broken.change(tensors);
    directory.write("model.safetensors", tensors.bytes());
    const auto weights = load(directory.path());
    ASSERT_FALSE(weights) << broken.what;
    EXPECT_THAT(weights.error().message, HasSubstr(directory.path())) << broken.what;
    for (const char* part : broken.message) {
      EXPECT_THAT(weights.error().message, HasSubstr(part)) << broken.what;
    }
  }
}

TEST(Weights, AcceptsExtraAndMisalignedTensorsAndEveryScaleType) {
  TempDirectory directory;
  directory.copy_from(golden_directory("qwen3_moe_fp8"));
  EditableTensors tensors(directory.read("model.safetensors"));
  const auto before = load(golden_directory("qwen3_moe_fp8"));
  ASSERT_TRUE(before);
  // One odd byte in front of everything, and layers of a multi-token predictor.
  tensors.tensors.insert(tensors.tensors.begin(), {"a.odd.byte", "U8", {1}, "x"});
  tensors.tensors.push_back({"model.mtp.0.weight", "F32", {1}, std::string(4, 'x')});
  tensors.tensors.push_back({"model.mtp.1.weight", "F4", {8}, std::string(4, 'x')});
  auto& scale = tensors.at(kQwenExpert + "_scale_inv");
  scale.dtype = "F8_E8M0";
  scale.bytes = "\x7F\x80";  // 1, 2
  directory.write("model.safetensors", tensors.bytes());
  const auto after = load(directory.path());
  ASSERT_TRUE(after) << after.error().message;
  const auto& expert = (*after)->layers[1].experts[2];
  EXPECT_EQ(expert.gate.scales[0], 1.0f);
  EXPECT_EQ(expert.gate.scales[1], 2.0f);
  const auto* was = static_cast<const Bf16*>((*before)->embedding.data);
  const auto* is = static_cast<const Bf16*>((*after)->embedding.data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(is) % alignof(Bf16), 0u);
  EXPECT_EQ(was[777].bits, is[777].bits);
}

TEST(Weights, RefusesBrokenIndexes) {
  struct Case {
    const char* what;
    std::function<void(const TempDirectory&, Json&)> change;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"missing shard",
       [](const TempDirectory& d, Json&) {
         std::filesystem::remove(d.file("model-00002-of-00003.safetensors"));
       },
       "names shard 'model-00002-of-00003.safetensors', which is not there; download it into"},
      {"tensor elsewhere",
       [](const TempDirectory&, Json& index) {
         index["weight_map"]["model.norm.weight"] = "model-00002-of-00003.safetensors";
         index["weight_map"]["model.embed_tokens.weight"] = "model-00002-of-00003.safetensors";
       },
       "is missing, though"},
      {"path", [](const TempDirectory&, Json& index) { index["weight_map"]["x"] = "../secret"; },
       "tensor 'x': expected the name of a file in the same directory, got ../secret"},
      {"number", [](const TempDirectory&, Json& index) { index["weight_map"]["x"] = 3; },
       "got an integer"},
      {"no map", [](const TempDirectory&, Json& index) { index.erase("weight_map"); },
       "field 'weight_map': expected an object"},
      {"array", [](const TempDirectory&, Json& index) { index = Json::array(); },
       "field 'weight_map'"},
  };
  for (const auto& test : cases) {
    TempDirectory directory;
    directory.copy_from(golden_directory("qwen3_moe"));
    Json index = Json::parse(directory.read("model.safetensors.index.json"));
    test.change(directory, index);
    directory.write("model.safetensors.index.json", index.dump());
    const auto weights = load(directory.path());
    ASSERT_FALSE(weights) << test.what;
    EXPECT_THAT(weights.error().message, HasSubstr(test.message)) << test.what;
  }
}

TEST(Weights, SaysWhatIsThereInsteadOfSafetensors) {
  TempDirectory directory;
  directory.copy_from(golden_directory("minimax_m2"));
  std::filesystem::remove(directory.file("model.safetensors"));
  EXPECT_THAT(load(directory.path()).error().message, HasSubstr("got neither"));
  directory.write("pytorch_model.bin", "x");
  EXPECT_THAT(load(directory.path()).error().message, HasSubstr("convert it with save_pretrained"));
}

TEST(Weights, BundledModelLoadsFast) {
  const std::string directory = std::string(EXPERTPLEX_SOURCE_DIR) + "/models/expertplex-mini";
  if (!std::filesystem::exists(directory + "/config.json")) GTEST_SKIP() << "no bundled model";
  const std::clock_t start = std::clock();  // CPU time: other jobs do not count
  const auto weights = load(directory);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC,
            3.0);  // about 0.02 s; room for sanitizers and slow disks
}

}  // namespace
}  // namespace expertplex
