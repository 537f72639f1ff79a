// A whole deployment in one process: MoE servers with their workers, and attention servers of both
// phases that reach them through the in-process fabric.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/attention_harness.h"
#include "cpu/cpu_backend.h"
#include "transport/in_process_fabric.h"

namespace expertplex::cpu::testing {

struct DeploymentOptions {
  DataType kv_type = DataType::kF32;
  MoeActivation activation = MoeActivation::kNative;
  int moe_servers = 2;
  int clusters = 2;
  int max_rows = 256;
  int page_count = 64;
  bool moe_servers_answer = true;  // else they are never started
  Nanoseconds wait_limit = 30 * kSecond;
};

class GoldenDeployment {
 public:
  GoldenDeployment(const TestModel& model, const DeploymentOptions& options)
      : options_(options),
        backend_(make_cpu_backend()),
        prefill_(model, apk::Phase::kPrefill, options.kv_type, options.max_rows,
                 options.page_count),
        decode_(model, apk::Phase::kDecode, options.kv_type, options.max_rows, options.page_count) {
    buffers_.layer_count = model.spec.layer_count;
    buffers_.expert_count = model.spec.expert_count;
    buffers_.moe_server_count = options.moe_servers;
    buffers_.top_k = model.spec.experts_per_token;
    buffers_.dispatch_row_bytes = backend_->dispatch_row_bytes(model.spec, options.activation);
    buffers_.combine_row_bytes = backend_->combine_row_bytes(model.spec, options.activation);
    buffers_.max_decode_rows = options.max_rows;
    buffers_.max_prefill_tokens = options.max_rows;
    buffers_.prefill_page_rows = backend_->prefill_page_rows();
    for (int i = 0; i < options.moe_servers; ++i) start_moe_server(model, i);
    attach(model, prefill_, transport::MoePhase::kPrefill);
    attach(model, decode_, transport::MoePhase::kDecode);
  }
  ~GoldenDeployment() {
    for (auto& server : moe_servers_) {
      if (!options_.moe_servers_answer) break;
      const auto stopped = server->stop(10 * kSecond);
      EXPECT_TRUE(stopped.ok()) << stopped.error().message;
    }
  }

  TestServer& prefill() { return prefill_; }
  TestServer& decode() { return decode_; }
  MoeExecutor& moe_server(int i) { return *moe_servers_[i]; }

 private:
  void start_moe_server(const TestModel& model, int index) {
    windows_.push_back("moe-" + std::to_string(index));
    const MoeServerConfig config{.index = index,
                                 .window_name = windows_.back(),
                                 .buffers = buffers_,
                                 .cluster_count = options_.clusters,
                                 .activation = options_.activation,
                                 .sharing = {.max_decode_clusters = options_.clusters - 1}};
    auto server = backend_->create_moe_executor(fabric_, config, model.spec, model.weights);
    ASSERT_TRUE(server.ok()) << server.error().message;
    moe_servers_.push_back(std::move(*server));
    if (!options_.moe_servers_answer) return;
    const auto started = moe_servers_.back()->start();
    ASSERT_TRUE(started.ok()) << started.error().message;
  }
  void attach(const TestModel& model, TestServer& server, transport::MoePhase phase) {
    AttentionServerConfig& config = server.config();
    config.activation = options_.activation;
    config.moe.phase = phase;
    config.moe.name = config.name;
    config.moe.moe_windows = windows_;
    config.moe.buffers = buffers_;
    config.moe.wait_limit = options_.wait_limit;
    auto executor = backend_->create_attention_executor(fabric_, config, model.spec, model.weights);
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    server.set_executor(std::move(*executor));
  }

  DeploymentOptions options_;
  transport::InProcessFabric fabric_;
  std::unique_ptr<Backend> backend_;
  transport::MoeBufferConfig buffers_;
  std::vector<std::string> windows_;
  std::vector<std::unique_ptr<MoeExecutor>> moe_servers_;
  TestServer prefill_, decode_;
};

}  // namespace expertplex::cpu::testing
