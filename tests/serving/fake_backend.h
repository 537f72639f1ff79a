// FakeBackend: attention servers without a model, for tests of the engine's threads. A token's KV
// row holds the hash of all tokens up to it, computed from the row before it, and the next token
// follows from the last row: so a page that was handed off wrongly or reused too early changes the
// answer. Decode servers form a real lockstep group: an iteration goes on when every member has run
// or skipped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"

namespace expertplex {

// What a request's greedy tokens must be, from the prompt alone.
std::vector<int32_t> true_tokens(std::vector<int32_t> prompt, int count, int vocab_size);

// Shared by the executors of one backend; tests turn the knobs.
struct FakeControls {
  std::atomic<int> fail_prefill{0}, fail_decode{0};             // iterations that fail from now on
  std::atomic<bool> stall_prefill{false}, stall_decode{false};  // until false or abort
  std::atomic<int> running{0};                                  // iterations in progress
  std::atomic<int> largest_decode_batch{0}, largest_prefill_rows{0};
  std::atomic<int> skips{0};

  std::mutex mutex;
  std::condition_variable moved;
  std::vector<int> group_parts;  // per decode member: iterations it has taken part in

  void set(std::atomic<bool>& knob, bool value) {
    {
      std::lock_guard lock(mutex);
      knob.store(value);
    }
    moved.notify_all();
  }
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(int decode_servers) {
    controls_->group_parts.resize(static_cast<size_t>(decode_servers));
  }
  FakeControls& controls() { return *controls_; }

  std::string name() const override { return "fake"; }
  size_t dispatch_row_bytes(const ModelSpec&, MoeActivation) const override { return 64; }
  size_t combine_row_bytes(const ModelSpec&, MoeActivation) const override { return 64; }
  int prefill_page_rows() const override { return 16; }
  DataType kv_cache_type(const ModelWeights&) const override { return DataType::kBf16; }
  int default_moe_clusters() const override { return 2; }
  int prefill_thread_niceness() const override { return 1; }
  Result<std::unique_ptr<MoeExecutor>> create_moe_executor(
      transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override;
  Result<std::unique_ptr<AttentionExecutor>> create_attention_executor(
      transport::Fabric& fabric, const AttentionServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override;

 private:
  std::shared_ptr<FakeControls> controls_ = std::make_shared<FakeControls>();
};

}  // namespace expertplex
