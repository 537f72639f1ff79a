// What ends an iteration early: an abort from another thread, MoE servers that do not answer,
// configurations that do not fit, logits that are no numbers.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "cpu/cpu_backend.h"
#include "cpu/golden_deployment.h"

namespace expertplex::cpu {
namespace {

using testing::DeploymentOptions;
using testing::golden_model;
using testing::GoldenDeployment;
using testing::TestModel;
using testing::TestSequence;
using testing::TestServer;

Result<IterationOutput> run_one(TestServer& server, TestSequence& sequence, apk::Phase phase) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const SequenceRows rows{3, 0, sequence.pages, SampleSpec{}};
  return server.executor().run_iteration(
      {.phase = phase, .tokens = tokens, .sequences = {&rows, 1}, .on_layer_cached = {}});
}

TEST(AttentionEnds, AnAbortFromAnotherThreadEndsTheWait) {
  const TestModel model = TestModel::load(golden_model("minimax_m2"));
  GoldenDeployment deployment(model, {.moe_servers_answer = false});
  TestSequence sequence = deployment.prefill().new_sequence(8);
  std::thread aborter([&] { deployment.prefill().executor().abort(); });
  const auto output = run_one(deployment.prefill(), sequence, apk::Phase::kPrefill);
  aborter.join();
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, ErrorCode::kCancelled);
}

TEST(AttentionEnds, AnMoeServerThatDoesNotAnswerIsNamed) {
  const TestModel model = TestModel::load(golden_model("minimax_m2"));
  GoldenDeployment deployment(model,
                              {.moe_servers_answer = false, .wait_limit = 50 * kMillisecond});
  for (const bool prefill : {true, false}) {
    TestServer& server = prefill ? deployment.prefill() : deployment.decode();
    TestSequence sequence = server.new_sequence(8);
    const auto output =
        run_one(server, sequence, prefill ? apk::Phase::kPrefill : apk::Phase::kDecode);
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(output.error().message.find("MoE server"), std::string::npos)
        << output.error().message;
  }
}

TEST(AttentionEnds, LogitsThatAreNoNumbersAreAnError) {
  TestModel model = TestModel::load(golden_model("minimax_m2"));
  auto broken = std::make_shared<ModelWeights>(*model.weights);
  broken->final_norm.assign(broken->final_norm.size(), std::numeric_limits<float>::quiet_NaN());
  model.weights = broken;
  auto server = TestServer::with_local_experts(model, apk::Phase::kPrefill, DataType::kF32);
  TestSequence sequence = server.new_sequence(8);
  const auto output = run_one(server, sequence, apk::Phase::kPrefill);
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, ErrorCode::kInternal);
}

TEST(AttentionEnds, ConfigurationsThatDoNotFitAreRefused) {
  const TestModel model = TestModel::load(golden_model("minimax_m2"));
  const auto error_of = [&](auto change) {
    TestServer server(model, apk::Phase::kPrefill, DataType::kF32, 64, 16);
    ModelSpec spec = model.spec;
    change(spec, server.config());
    auto executor =
        CpuAttentionExecutor::create(server.config(), spec, model.weights,
                                     std::make_unique<testing::LocalExperts>(spec, model.weights));
    return executor.ok() ? std::nullopt : std::optional(executor.error().code);
  };
  EXPECT_EQ(error_of([](ModelSpec&, AttentionServerConfig&) {}), std::nullopt);
  EXPECT_EQ(error_of([](ModelSpec& s, AttentionServerConfig&) { s.head_dim = 20; }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(error_of([](ModelSpec&, AttentionServerConfig& c) {
              c.activation = MoeActivation::kFp8;  // hidden size 64
            }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(error_of([](ModelSpec&, AttentionServerConfig& c) { c.kv_cache.layer_count = 1; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      error_of([](ModelSpec&, AttentionServerConfig& c) { c.kv_cache.type = DataType::kF16; }),
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([](ModelSpec&, AttentionServerConfig& c) { c.max_rows = 0; }),
            ErrorCode::kInvalidArgument);
}

TEST(AttentionEnds, TheBackendSaysWhatItIs) {
  const auto backend = make_cpu_backend();
  EXPECT_EQ(backend->name().rfind("cpu (", 0), 0u);
  const TestModel f32 = TestModel::load(golden_model("minimax_m2"));
  const TestModel fp8 = TestModel::load(golden_model("minimax_m2_fp8"));
  EXPECT_EQ(backend->kv_cache_type(*f32.weights), DataType::kF32);
  EXPECT_EQ(backend->kv_cache_type(*fp8.weights), DataType::kBf16);
  EXPECT_EQ(backend->dispatch_row_bytes(fp8.spec, MoeActivation::kFp8), 256u + 2 * sizeof(float));
  EXPECT_EQ(backend->combine_row_bytes(fp8.spec, MoeActivation::kFp8), 512u);
  EXPECT_GE(backend->default_moe_clusters(), 2);
}

}  // namespace
}  // namespace expertplex::cpu
