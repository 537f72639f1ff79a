#include "cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "cpu/attention/cpu_attention_executor.h"
#include "cpu/kernels/linear.h"
#include "cpu/moe/moe_server.h"
#include "cpu/moe/row_format.h"

namespace expertplex::cpu {
namespace {

// Rows of a prefill tile: enough for the matrix kernels to run at full speed, few enough that
// little of an expert's last page stays empty.
constexpr int kPrefillPageRows = 32;
// One machine's cores are shared by all servers of a process; more clusters than this per MoE
// server only make tiles wait for each other.
constexpr int kMostDefaultClusters = 16;
constexpr int kPrefillNiceness = 3;

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return fmt::format("cpu ({})", kernel_set_name()); }

  size_t dispatch_row_bytes(const ModelSpec& spec, MoeActivation activation) const override {
    return cpu::dispatch_row_bytes(spec.hidden_size, activation);
  }
  size_t combine_row_bytes(const ModelSpec& spec, MoeActivation activation) const override {
    return cpu::combine_row_bytes(spec.hidden_size, activation);
  }
  int prefill_page_rows() const override { return kPrefillPageRows; }
  DataType kv_cache_type(const ModelWeights& weights) const override {
    const bool f32 = !weights.layers.empty() && weights.layers[0].key.type == DataType::kF32;
    return f32 ? DataType::kF32 : DataType::kBf16;
  }
  int default_moe_clusters() const override {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(cores / 2, 2, kMostDefaultClusters);
  }
  int prefill_thread_niceness() const override { return kPrefillNiceness; }

  Result<std::unique_ptr<MoeExecutor>> create_moe_executor(
      transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override {
    EXPERTPLEX_ASSIGN(auto executor,
                      CpuMoeExecutor::create(fabric, config, spec, std::move(weights)));
    return std::unique_ptr<MoeExecutor>(std::move(executor));
  }

  Result<std::unique_ptr<AttentionExecutor>> create_attention_executor(
      transport::Fabric& fabric, const AttentionServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) override {
    EXPERTPLEX_ASSIGN(auto moe, transport::MoeClient::connect(fabric, config.moe));
    return CpuAttentionExecutor::create(config, spec, std::move(weights), std::move(moe));
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace expertplex::cpu
