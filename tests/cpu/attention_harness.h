// What attention and golden tests share: models, sequences with their KV pages, and attention
// servers that run over them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/random.h"
#include "cpu/attention/cpu_attention_executor.h"
#include "cpu/attention_local_experts.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace expertplex::cpu::testing {

struct TestModel {
  ModelSpec spec;
  std::shared_ptr<const ModelWeights> weights;

  static TestModel load(const std::string& directory) {
    auto spec = load_model_spec(directory);
    EXPECT_TRUE(spec.ok()) << spec.error().message;
    auto weights = load_model_weights(directory, *spec);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    return {*spec, *weights};
  }
};

inline std::string golden_model(const std::string& name) {
  return std::string(EXPERTPLEX_SOURCE_DIR) + "/tests/golden/" + name;
}

// One request's tokens in an attention server's cache.
struct TestSequence {
  std::vector<uint32_t> pages;
  int length = 0;
};

// New tokens of one sequence in an iteration.
struct Piece {
  TestSequence* sequence;
  std::vector<int32_t> tokens;
  std::optional<SampleSpec> sample;
};

// An attention executor with a cache of its own. Pages are handed out in a scattered order.
class TestServer {
 public:
  TestServer(const TestModel& model, apk::Phase phase, DataType kv_type, int max_rows,
             int page_count)
      : phase_(phase) {
    config_.phase = phase;
    config_.name = "attention server under test";
    config_.max_rows = max_rows;
    config_.kv_cache =
        KvCacheShape{model.spec.layer_count, model.spec.kv_size(), kv_type, page_count};
    cache_.assign(config_.kv_cache.total_bytes(), std::byte{0xFF});  // not a number, everywhere
    config_.kv_cache_data = cache_.data();
    Random random(42);
    for (int page = 0; page < page_count; ++page) {
      free_pages_.push_back(static_cast<uint32_t>(page));
      std::swap(free_pages_.back(), free_pages_[random.below(free_pages_.size())]);
    }
  }

  // With the experts computed in place.
  static TestServer with_local_experts(const TestModel& model, apk::Phase phase, DataType kv_type,
                                       int max_rows = 512, int page_count = 256) {
    TestServer server(model, phase, kv_type, max_rows, page_count);
    auto executor =
        CpuAttentionExecutor::create(server.config_, model.spec, model.weights,
                                     std::make_unique<LocalExperts>(model.spec, model.weights));
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    server.executor_ = std::move(*executor);
    return server;
  }

  AttentionServerConfig& config() { return config_; }
  void set_executor(std::unique_ptr<AttentionExecutor> executor) {
    executor_ = std::move(executor);
  }
  AttentionExecutor& executor() { return *executor_; }

  TestSequence new_sequence(int max_tokens) {
    TestSequence sequence;
    for (int i = 0; i < pages_for(max_tokens); ++i) {
      EXPECT_FALSE(free_pages_.empty());
      sequence.pages.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    return sequence;
  }
  void release(TestSequence& sequence) {
    free_pages_.insert(free_pages_.end(), sequence.pages.begin(), sequence.pages.end());
    sequence = {};
  }

  IterationOutput run(const std::vector<Piece>& pieces, IterationProbe* probe = nullptr) {
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> rows;
    for (const Piece& piece : pieces) {
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      rows.push_back({static_cast<int>(piece.tokens.size()), piece.sequence->length,
                      piece.sequence->pages, piece.sample});
      piece.sequence->length += static_cast<int>(piece.tokens.size());
    }
    auto output = executor_->run_iteration(
        {.phase = phase_, .tokens = tokens, .sequences = rows, .on_layer_cached = {}}, probe);
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? *output : IterationOutput{};
  }

 private:
  apk::Phase phase_;
  AttentionServerConfig config_;
  std::vector<std::byte> cache_;
  std::vector<uint32_t> free_pages_;
  std::unique_ptr<AttentionExecutor> executor_;
};

inline std::vector<int32_t> random_tokens(Random& random, int count, int vocab_size) {
  std::vector<int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<int32_t>(random.below(vocab_size));
  return tokens;
}

// Maximum absolute difference over maximum absolute value of the reference.
inline double relative_error(std::span<const float> values, std::span<const float> reference) {
  if (values.size() != reference.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double d = std::abs(static_cast<double>(values[i]) - reference[i]);
    difference = d <= difference ? difference : d;  // NaN counts as larger
    size = std::max(size, std::abs(static_cast<double>(reference[i])));
  }
  return difference / size;
}

}  // namespace expertplex::cpu::testing
