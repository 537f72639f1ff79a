#include "serving/fake_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/random.h"

namespace expertplex {
namespace {

constexpr auto kGroupLimit = std::chrono::seconds(20);

uint64_t chain(uint64_t before, int32_t token) {
  return Random(before * 31 + static_cast<uint64_t>(token) + 1).next();
}

int32_t token_after(uint64_t hash, int vocab_size, std::span<const int32_t> forbidden) {
  auto token = static_cast<int32_t>(hash % static_cast<uint64_t>(vocab_size));
  while (std::find(forbidden.begin(), forbidden.end(), token) != forbidden.end()) {
    token = (token + 1) % vocab_size;
  }
  return token;
}

class FakeMoe final : public MoeExecutor {
 public:
  Result<void> start() override { return {}; }
  Result<void> stop(Nanoseconds) override { return {}; }
  void abort() override {}
  MoeStatistics statistics() const override { return {}; }
};

class FakeAttention final : public AttentionExecutor {
 public:
  FakeAttention(const AttentionServerConfig& config, const ModelSpec& spec,
                std::shared_ptr<FakeControls> controls)
      : config_(config), vocab_size_(spec.vocab_size), controls_(std::move(controls)) {}

  Result<IterationOutput> run_iteration(const IterationInput& input, IterationProbe*) override {
    const bool decode = config_.phase == apk::Phase::kDecode;
    EXPERTPLEX_CHECK(static_cast<int>(input.tokens.size()) <= config_.max_rows);
    EXPERTPLEX_CHECK(input.phase == config_.phase && !input.sequences.empty());
    ++controls_->running;
    auto output = compute(input);
    --controls_->running;
    auto& largest = decode ? controls_->largest_decode_batch : controls_->largest_prefill_rows;
    const int rows = static_cast<int>(input.tokens.size());
    for (int seen = largest.load(); seen < rows && !largest.compare_exchange_weak(seen, rows);) {
    }
    return output;
  }

  Result<void> skip_iteration() override {
    ++controls_->skips;
    return take_part(/*wait=*/false);
  }

  void abort() override { controls_->set(aborted_, true); }

 private:
  Result<IterationOutput> compute(const IterationInput& input) {
    const bool decode = config_.phase == apk::Phase::kDecode;
    if (decode) EXPERTPLEX_TRY(take_part(/*wait=*/true));
    EXPERTPLEX_TRY(stall(decode ? controls_->stall_decode : controls_->stall_prefill));
    std::atomic<int>& failures = decode ? controls_->fail_decode : controls_->fail_prefill;
    for (int left = failures.load(); left > 0;) {
      if (failures.compare_exchange_weak(left, left - 1)) {
        return make_error(ErrorCode::kDeadlineExceeded, "{}: injected failure", config_.name);
      }
    }
    IterationOutput output;
    for (int layer = 0; layer < config_.kv_cache.layer_count; ++layer) {
      output.next_tokens.clear();
      size_t token = 0;
      for (const SequenceRows& rows : input.sequences) {
        output.next_tokens.push_back(run_sequence(layer, rows, input.tokens.subspan(token)));
        token += static_cast<size_t>(rows.row_count);
      }
      if (input.on_layer_cached) input.on_layer_cached(layer);
    }
    return output;
  }

  int32_t run_sequence(int layer, const SequenceRows& rows, std::span<const int32_t> tokens) {
    uint64_t hash = 0;
    if (rows.context_length > 0) {
      std::memcpy(&hash, row(layer, rows, rows.context_length - 1), sizeof hash);
    }
    for (int r = 0; r < rows.row_count; ++r) {
      hash = chain(hash, tokens[static_cast<size_t>(r)]);
      std::memcpy(row(layer, rows, rows.context_length + r), &hash, sizeof hash);
    }
    return rows.sample ? token_after(hash, vocab_size_, rows.sample->forbidden) : -1;
  }

  std::byte* row(int layer, const SequenceRows& rows, int position) const {
    const KvCacheShape& cache = config_.kv_cache;
    const uint32_t page = rows.block_table[static_cast<size_t>(position / kKvPageTokens)];
    const size_t index = static_cast<size_t>(layer) * static_cast<size_t>(cache.page_count) + page;
    return config_.kv_cache_data + index * cache.page_bytes() +
           static_cast<size_t>(position % kKvPageTokens) * cache.row_bytes();
  }

  Result<void> stall(const std::atomic<bool>& knob) {
    std::unique_lock lock(controls_->mutex);
    const bool over = controls_->moved.wait_for(lock, kGroupLimit,
                                                [&] { return !knob.load() || aborted_.load(); });
    if (!over || aborted_.load()) return make_error(ErrorCode::kCancelled, "aborted");
    return {};
  }

  // The lockstep of the group: who runs goes on when every member has reached its iteration.
  Result<void> take_part(bool wait) {
    std::unique_lock lock(controls_->mutex);
    std::vector<int>& parts = controls_->group_parts;
    const int mine = ++parts[static_cast<size_t>(config_.index)];
    controls_->moved.notify_all();
    EXPERTPLEX_CHECK(*std::min_element(parts.begin(), parts.end()) + 1 >= mine,
                     "a decode server runs ahead of its group");
    if (!wait) return {};
    const bool together = controls_->moved.wait_for(lock, kGroupLimit, [&] {
      return aborted_.load() || *std::min_element(parts.begin(), parts.end()) >= mine;
    });
    if (aborted_.load()) return make_error(ErrorCode::kCancelled, "aborted");
    if (!together) return make_error(ErrorCode::kDeadlineExceeded, "the group did not come");
    return {};
  }

  const AttentionServerConfig config_;
  const int vocab_size_;
  std::shared_ptr<FakeControls> controls_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::vector<int32_t> true_tokens(std::vector<int32_t> prompt, int count, int vocab_size) {
  uint64_t hash = 0;
  for (int32_t token : prompt) hash = chain(hash, token);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(token_after(hash, vocab_size, {}));
    hash = chain(hash, tokens.back());
  }
  return tokens;
}

Result<std::unique_ptr<MoeExecutor>> FakeBackend::create_moe_executor(
    transport::Fabric&, const MoeServerConfig&, const ModelSpec&,
    std::shared_ptr<const ModelWeights>) {
  return std::unique_ptr<MoeExecutor>(std::make_unique<FakeMoe>());
}

Result<std::unique_ptr<AttentionExecutor>> FakeBackend::create_attention_executor(
    transport::Fabric&, const AttentionServerConfig& config, const ModelSpec& spec,
    std::shared_ptr<const ModelWeights>) {
  return std::unique_ptr<AttentionExecutor>(
      std::make_unique<FakeAttention>(config, spec, controls_));
}

}  // namespace expertplex
