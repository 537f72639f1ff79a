// AlteredBackend: the CPU backend with a fault or a setting of the test's choice.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "cpu/cpu_backend.h"

namespace expertplex {

class AlteredBackend final : public Backend {
 public:
  // The next iterations of decode server `failing_decode` fail before they begin.
  std::atomic<int> failing_decode{-1};
  std::atomic<int> failures{0};
  bool f32_cache = false;
  std::vector<MoeExecutor*> moe_servers;

  std::string name() const override { return inner_->name(); }
  size_t dispatch_row_bytes(const ModelSpec& spec, MoeActivation activation) const override {
    return inner_->dispatch_row_bytes(spec, activation);
  }
  size_t combine_row_bytes(const ModelSpec& spec, MoeActivation activation) const override {
    return inner_->combine_row_bytes(spec, activation);
  }
  int prefill_page_rows() const override { return inner_->prefill_page_rows(); }
  DataType kv_cache_type(const ModelWeights& weights) const override {
    return f32_cache ? DataType::kF32 : inner_->kv_cache_type(weights);
  }
  int default_moe_clusters() const override { return inner_->default_moe_clusters(); }
  Result<std::unique_ptr<MoeExecutor>> create_moe_executor(
      transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override {
    auto made = inner_->create_moe_executor(fabric, config, spec, std::move(weights));
    if (made) moe_servers.push_back(made->get());
    return made;
  }
  Result<std::unique_ptr<AttentionExecutor>> create_attention_executor(
      transport::Fabric& fabric, const AttentionServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override {
    auto made = inner_->create_attention_executor(fabric, config, spec, std::move(weights));
    if (!made || config.phase != apk::Phase::kDecode) return made;
    return std::unique_ptr<AttentionExecutor>(
        std::make_unique<Faulty>(std::move(*made), *this, config.index));
  }

 private:
  class Faulty final : public AttentionExecutor {
   public:
    Faulty(std::unique_ptr<AttentionExecutor> inner, AlteredBackend& owner, int index)
        : inner_(std::move(inner)), owner_(owner), index_(index) {}
    Result<IterationOutput> run_iteration(const IterationInput& input,
                                          IterationProbe* probe) override {
      if (owner_.failing_decode.load() == index_ && owner_.failures.fetch_sub(1) > 0) {
        return make_error(ErrorCode::kInternal, "injected failure");
      }
      return inner_->run_iteration(input, probe);
    }
    Result<void> skip_iteration() override { return inner_->skip_iteration(); }
    void abort() override { inner_->abort(); }

   private:
    std::unique_ptr<AttentionExecutor> inner_;
    AlteredBackend& owner_;
    const int index_;
  };

  std::unique_ptr<Backend> inner_ = cpu::make_cpu_backend();
};

}  // namespace expertplex
