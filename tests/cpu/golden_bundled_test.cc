// The bundled model, served as users get it (FP8 weights, BF16 cache), against its float32
// reference: greedy tokens agree up to the first step whose two best logits are nearly equal.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "cpu/golden_deployment.h"

namespace expertplex::cpu {
namespace {

using testing::GoldenDeployment;
using testing::TestModel;
using testing::TestSequence;

// A step whose margin is below this may go either way: several times what a BF16 cache changes.
constexpr double kNearTie = 0.15;

TEST(GoldenBundled, GreedyTokensAgreeUpToNearTies) {
  const std::string directory = std::string(EXPERTPLEX_SOURCE_DIR) + "/models/expertplex-mini";
  const std::string golden_path =
      std::string(EXPERTPLEX_SOURCE_DIR) + "/tests/golden/expertplex_mini.json";
  if (!std::filesystem::exists(directory + "/config.json") ||
      !std::filesystem::exists(golden_path)) {
    GTEST_SKIP() << "no bundled model here";
  }
  const TestModel model = TestModel::load(directory);
  const auto golden = read_json_file(golden_path);
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  GoldenDeployment deployment(model,
                              {.kv_type = DataType::kBf16, .max_rows = 1024, .page_count = 128});
  int compared = 0, prompts = 0;
  for (const Json& prompt : (*golden)["prompts"]) {
    const auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const auto expected = prompt["greedy_ids"].get<std::vector<int32_t>>();
    const auto margins = prompt["top2_margin"].get<std::vector<double>>();
    auto& server = deployment.prefill();
    TestSequence sequence = server.new_sequence(static_cast<int>(ids.size() + expected.size()));
    int32_t next = server.run({{&sequence, ids, SampleSpec{}}}).next_tokens[0];
    for (size_t step = 0; step < expected.size(); ++step) {
      if (next != expected[step]) {
        EXPECT_LT(margins[step], kNearTie) << "prompt " << prompts << ", step " << step;
        break;
      }
      ++compared;
      next = server.run({{&sequence, {next}, SampleSpec{}}}).next_tokens[0];
    }
    server.release(sequence);
    ++prompts;
  }
  RecordProperty("tokens_compared", compared);
  EXPECT_GE(compared, 16 * prompts);
}

}  // namespace
}  // namespace expertplex::cpu
