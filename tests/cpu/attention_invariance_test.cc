// Contract 1: a sequence's logits are the same, bit for bit, whatever runs beside it and however
// its prompt is cut into iterations.
#include <gtest/gtest.h>

#include "cpu/attention_harness.h"
#include "cpu/kernels_reference.h"

namespace expertplex::cpu {
namespace {

using testing::golden_model;
using testing::Piece;
using testing::random_tokens;
using testing::same_bits;
using testing::TestModel;
using testing::TestSequence;
using testing::TestServer;

class AttentionInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  AttentionInvariance()
      : model_(TestModel::load(golden_model(GetParam()))),
        server_(TestServer::with_local_experts(model_, apk::Phase::kPrefill, DataType::kBf16)),
        random_(11) {}

  std::vector<int32_t> prompt(int length) {
    return random_tokens(random_, length, model_.spec.vocab_size);
  }
  // The logits of all rows of a prompt, given in pieces of `step` tokens.
  std::vector<float> logits_in_pieces(const std::vector<int32_t>& tokens, int step) {
    std::vector<float> logits;
    TestSequence sequence = server_.new_sequence(static_cast<int>(tokens.size()));
    for (size_t done = 0; done < tokens.size(); done += step) {
      const size_t end = std::min(tokens.size(), done + step);
      IterationProbe probe;
      probe.logits_of_all_rows = true;
      server_.run({{&sequence, {tokens.begin() + done, tokens.begin() + end}, {}}}, &probe);
      logits.insert(logits.end(), probe.logits.begin(), probe.logits.end());
    }
    server_.release(sequence);
    return logits;
  }

  TestModel model_;
  TestServer server_;
  Random random_;
};

TEST_P(AttentionInvariance, APromptMayBeSplitAnyhow) {
  const auto tokens = prompt(150);
  const auto whole = logits_in_pieces(tokens, 150);
  for (const int step : {1, 7, 16, 33, 64, 149}) {
    EXPECT_TRUE(same_bits(logits_in_pieces(tokens, step), whole)) << "pieces of " << step;
  }
}

TEST_P(AttentionInvariance, OtherSequencesDoNotMatter) {
  constexpr int kSequences = 9;
  const size_t vocab = static_cast<size_t>(model_.spec.vocab_size);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < kSequences; ++i) {
    prompts.push_back(prompt(static_cast<int>(random_.between(1, 90))));
    alone.push_back(logits_in_pieces(prompts.back(), 1000));
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<TestSequence> sequences;
    for (const auto& p : prompts)
      sequences.push_back(server_.new_sequence(static_cast<int>(p.size())));
    std::vector<Piece> pieces;
    std::vector<int> order(kSequences);
    for (int i = 0; i < kSequences; ++i) order[i] = (i * 4 + round) % kSequences;
    for (const int i : order) pieces.push_back({&sequences[i], prompts[i], {}});
    IterationProbe probe;
    probe.logits_of_all_rows = true;
    server_.run(pieces, &probe);
    size_t at = 0;
    for (const int i : order) {
      const size_t count = prompts[i].size() * vocab;
      EXPECT_EQ(std::memcmp(&probe.logits[at], alone[i].data(), count * sizeof(float)), 0) << i;
      at += count;
    }
    for (auto& s : sequences) server_.release(s);
  }
}

TEST_P(AttentionInvariance, SampledTokensDependOnSeedAndPositionOnly) {
  TestServer decode = TestServer::with_local_experts(model_, apk::Phase::kDecode, DataType::kBf16);
  constexpr int kSequences = 40;  // more than one group of logits
  const auto sample = [](int i) {
    return SampleSpec{.temperature = 1.0f + 0.1f * i,
                      .top_p = 0.9f,
                      .seed = static_cast<uint64_t>(i),
                      .forbidden = {}};
  };
  std::vector<std::vector<int32_t>> alone(kSequences), batched(kSequences);
  std::vector<TestSequence> sequences;
  std::vector<Piece> pieces;
  for (int i = 0; i < kSequences; ++i) {
    TestSequence sequence = decode.new_sequence(8);
    int32_t token = i;
    for (int step = 0; step < 6; ++step) {
      token = decode.run({{&sequence, {token}, sample(i)}}).next_tokens[0];
      alone[i].push_back(token);
    }
    decode.release(sequence);
  }
  for (int i = 0; i < kSequences; ++i) sequences.push_back(decode.new_sequence(8));
  std::vector<int32_t> tokens(kSequences);
  for (int i = 0; i < kSequences; ++i) tokens[i] = i;
  for (int step = 0; step < 6; ++step) {
    pieces.clear();
    for (int i = 0; i < kSequences; ++i) pieces.push_back({&sequences[i], {tokens[i]}, sample(i)});
    tokens = decode.run(pieces).next_tokens;
    for (int i = 0; i < kSequences; ++i) batched[i].push_back(tokens[i]);
  }
  EXPECT_EQ(alone, batched);
}

TEST_P(AttentionInvariance, OnlyTheAskedForSequencesAreSampled) {
  TestSequence a = server_.new_sequence(8), b = server_.new_sequence(8),
               c = server_.new_sequence(8);
  IterationProbe probe;
  const auto output = server_.run(
      {{&a, prompt(3), {}}, {&b, prompt(2), SampleSpec{}}, {&c, prompt(1), {}}}, &probe);
  ASSERT_EQ(output.next_tokens.size(), 3u);
  EXPECT_EQ(output.next_tokens[0], -1);
  EXPECT_GE(output.next_tokens[1], 0);
  EXPECT_EQ(output.next_tokens[2], -1);
  EXPECT_EQ(probe.logits.size(), static_cast<size_t>(model_.spec.vocab_size));
  EXPECT_EQ(probe.hidden.size(), static_cast<size_t>(model_.spec.layer_count));
}

TEST_P(AttentionInvariance, LayersAreReportedInOrder) {
  std::vector<int> layers;
  TestSequence sequence = server_.new_sequence(4);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const SequenceRows rows{3, 0, sequence.pages, {}};
  const auto output = server_.executor().run_iteration(
      {.phase = apk::Phase::kPrefill,
       .tokens = tokens,
       .sequences = {&rows, 1},
       .on_layer_cached = [&](int layer) { layers.push_back(layer); }});
  ASSERT_TRUE(output.ok());
  std::vector<int> expected(model_.spec.layer_count);
  for (int i = 0; i < model_.spec.layer_count; ++i) expected[i] = i;
  EXPECT_EQ(layers, expected);
}

INSTANTIATE_TEST_SUITE_P(Models, AttentionInvariance,
                         ::testing::Values("minimax_m2_fp8", "qwen3_moe_bf16_tied"));

}  // namespace
}  // namespace expertplex::cpu
