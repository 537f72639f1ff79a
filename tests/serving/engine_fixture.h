// EngineFixture: a model directory and an engine on it, with the helpers that engine tests share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "serving/collecting_sink.h"
#include "serving/engine.h"

namespace expertplex {

struct EngineFixture {
  explicit EngineFixture(const std::string& directory) {
    static const auto shared = *Tokenizer::load(EXPERTPLEX_SOURCE_DIR "/models/expertplex-mini");
    tokenizer = shared;
    auto loaded = load_model_spec(directory);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    spec = *loaded;
  }

  void create(const EngineConfig& config, Backend& backend) {
    engine.reset();
    auto made = Engine::create(config, spec, weights, tokenizer, backend);
    ASSERT_TRUE(made.ok()) << made.error().message;
    engine = std::move(*made);
  }

  std::shared_ptr<CollectingSink> submit(GenerationRequest request, RequestId* id = nullptr) {
    auto sink = std::make_shared<CollectingSink>();
    const auto result = engine->submit(std::move(request), sink);
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (id && result) *id = *result;
    return sink;
  }

  // Greedy, to the full length.
  std::shared_ptr<CollectingSink> submit(std::vector<int32_t> prompt, int max_tokens,
                                         RequestId* id = nullptr) {
    return submit(greedy(std::move(prompt), max_tokens), id);
  }

  static GenerationRequest greedy(std::vector<int32_t> prompt, int max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    return request;
  }

  std::vector<int32_t> prompt(Random& random, int max_length) const {
    std::vector<int32_t> tokens(static_cast<size_t>(random.between(1, max_length)));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random.below(static_cast<uint64_t>(spec.vocab_size)));
    }
    return tokens;
  }

  std::string text_of(const std::vector<int32_t>& tokens) const {
    IncrementalDecoder decoder(tokenizer, true);
    std::string text;
    for (int32_t token : tokens) text += decoder.push(token);
    return text + decoder.finish();
  }

  // Drains: nobody runs, and every page and slot is back.
  void expect_nothing_held() {
    const auto drained = engine->drain(60 * kSecond);
    EXPECT_TRUE(drained.ok()) << drained.error().message;
    const EngineStatistics s = engine->statistics();
    EXPECT_EQ(s.running, 0);
    EXPECT_EQ(s.waiting, 0);
    EXPECT_EQ(s.kv_pages_used, 0);
    EXPECT_EQ(s.handoff_slots_used, 0);
    for (const MoeStatistics& moe : s.moe) EXPECT_EQ(moe.open_operations, 0u);
  }

  ModelSpec spec;
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
};

}  // namespace expertplex
