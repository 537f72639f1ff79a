// The attention side alone (experts computed in place) against `transformers`: hidden states after
// every layer, router choices and weights, logits; as prefill and token by token.
#include <gtest/gtest.h>

#include "cpu/attention_harness.h"
#include "cpu/golden_files.h"

namespace expertplex::cpu {
namespace {

using testing::golden_model;
using testing::GoldenFile;
using testing::relative_error;
using testing::TestModel;
using testing::TestSequence;
using testing::TestServer;

// README.md of the golden files; float32 all the way reaches it with room to spare.
constexpr double kTolerance = 1e-4;

class AttentionGolden : public ::testing::TestWithParam<const char*> {
 protected:
  AttentionGolden()
      : model_(TestModel::load(golden_model(GetParam()))), golden_(golden_model(GetParam())) {}

  void compare_layers(const IterationProbe& probe, int prompt) {
    const auto hidden = golden_.floats(prompt, "hidden_states");
    const auto ids = golden_.ints(prompt, "router_indices");
    const auto weights = golden_.floats(prompt, "router_weights");
    for (int layer = 0; layer < model_.spec.layer_count; ++layer) {
      const size_t states = probe.hidden[layer].size(), choices = probe.expert_ids[layer].size();
      EXPECT_LT(relative_error(probe.hidden[layer], {&hidden[(layer + 1) * states], states}),
                kTolerance);
      EXPECT_TRUE(std::equal(probe.expert_ids[layer].begin(), probe.expert_ids[layer].end(),
                             ids.begin() + layer * choices));
      EXPECT_LT(relative_error(probe.expert_weights[layer], {&weights[layer * choices], choices}),
                kTolerance);
    }
  }

  TestModel model_;
  GoldenFile golden_;
};

TEST_P(AttentionGolden, Prefill) {
  auto server = TestServer::with_local_experts(model_, apk::Phase::kPrefill, DataType::kF32);
  for (int prompt = 0; prompt < testing::kGoldenPrompts; ++prompt) {
    const auto tokens = golden_.ints(prompt, "token_ids");
    TestSequence sequence = server.new_sequence(static_cast<int>(tokens.size()));
    IterationProbe probe;
    probe.logits_of_all_rows = true;
    server.run({{&sequence, tokens, {}}}, &probe);
    compare_layers(probe, prompt);
    const double error = relative_error(probe.logits, golden_.floats(prompt, "logits"));
    EXPECT_LT(error, kTolerance);
    RecordProperty("logits_error_" + std::to_string(prompt), std::to_string(error));
  }
}

TEST_P(AttentionGolden, DecodeTokenByToken) {
  auto server = TestServer::with_local_experts(model_, apk::Phase::kDecode, DataType::kF32);
  for (int prompt = 0; prompt < testing::kGoldenPrompts; ++prompt) {
    TestSequence sequence = server.new_sequence(64);
    std::vector<float> logits;
    for (const int32_t token : golden_.ints(prompt, "token_ids")) {
      IterationProbe probe;
      server.run({{&sequence, {token}, SampleSpec{}}}, &probe);
      logits.insert(logits.end(), probe.logits.begin(), probe.logits.end());
    }
    EXPECT_LT(relative_error(logits, golden_.floats(prompt, "logits")), kTolerance);
  }
}

TEST_P(AttentionGolden, GreedyContinuation) {
  auto server = TestServer::with_local_experts(model_, apk::Phase::kDecode, DataType::kF32);
  for (int prompt = 0; prompt < testing::kGoldenPrompts; ++prompt) {
    TestSequence sequence = server.new_sequence(64);
    std::vector<int32_t> continuation;
    int32_t next = -1;
    for (const int32_t token : golden_.ints(prompt, "token_ids")) {
      next = server.run({{&sequence, {token}, SampleSpec{}}}).next_tokens[0];
    }
    const auto expected = golden_.ints(prompt, "greedy_ids");
    while (continuation.size() < expected.size()) {
      continuation.push_back(next);
      next = server.run({{&sequence, {next}, SampleSpec{}}}).next_tokens[0];
    }
    EXPECT_EQ(continuation, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AttentionGolden, ::testing::ValuesIn(testing::kGoldenModels));

}  // namespace
}  // namespace expertplex::cpu
