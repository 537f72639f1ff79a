// The CPU MoE server through its window: right numbers, the same numbers whatever happens, nothing
// lost, faults refused.
#include "cpu/moe/moe_server.h"

#include <gtest/gtest.h>

#include <ctime>
#include <future>

#include "base/log.h"
#include "moe_rig.h"

namespace expertplex::cpu {
namespace {

using transport::MoePhase;

// Logs of plans and intended faults would drown the test's own output.
const bool quiet = [] {
  spdlog::set_level(spdlog::level::off);
  return true;
}();

MoeDimensions with(DataType weights, MoeActivation activation) {
  MoeDimensions d;
  d.weights = weights;
  d.activation = activation;
  if (activation == MoeActivation::kFp8) {
    d.hidden = 128;
    d.intermediate = 256;
  }
  return d;
}

class MoeServerNumbers : public ::testing::TestWithParam<std::tuple<DataType, MoeActivation>> {};

TEST_P(MoeServerNumbers, BothPhasesAgreeWithTheReference) {
  const auto [weights, activation] = GetParam();
  const MoeDimensions d = with(weights, activation);
  const RandomMoeModel model(d, 1);
  MoeRig rig(d, model);
  ASSERT_EQ(rig.start(), "");
  // FP8: values of the two products that straddle a rounding boundary go to different neighbours.
  const double limit = activation == MoeActivation::kFp8 ? 2e-2 : 1e-5;
  std::vector<std::future<MoeRun>> runs;
  for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
    for (int member = 0; member < 2; ++member) {
      std::shared_ptr<transport::MoeClient> client = rig.connect(phase, member);
      const int most = phase == MoePhase::kDecode ? d.max_decode_rows : d.max_prefill_tokens;
      runs.push_back(std::async(std::launch::async, [&rig, client, member, most, limit] {
        return run_moe(rig, *client, member, 8, most, limit);
      }));
    }
  }
  for (auto& run : runs) EXPECT_EQ(run.get().complaint, "");
  EXPECT_EQ(rig.stop(), "");
}

INSTANTIATE_TEST_SUITE_P(
    AllFormats, MoeServerNumbers,
    ::testing::Combine(::testing::Values(DataType::kF32, DataType::kBf16, DataType::kFp8E4m3),
                       ::testing::Values(MoeActivation::kNative, MoeActivation::kFp8)),
    [](const auto& info) {
      return std::string(data_type_name(std::get<0>(info.param))) +
             (std::get<1>(info.param) == MoeActivation::kFp8 ? "_fp8" : "_native");
    });

TEST(MoeServer, OddShapes) {
  Random random(3);
  for (int i = 0; i < 12; ++i) {
    MoeDimensions d;
    d.layers = static_cast<int>(random.between(1, 3));
    d.hidden = static_cast<int>(random.between(1, 70));
    d.intermediate = static_cast<int>(random.between(1, 150));
    d.experts = static_cast<int>(random.between(1, 9));
    d.top_k = static_cast<int>(random.between(1, d.experts));
    d.moe_servers = static_cast<int>(random.between(1, std::min(3, d.experts)));
    d.clusters = static_cast<int>(random.between(1, 3));
    d.page_rows = static_cast<int>(random.between(1, 40));
    d.decode_participants = i % 3 == 0 ? 0 : 1;
    d.prefill_senders = i % 3 == 1 ? 0 : 1;
    d.weights = i % 2 == 0 ? DataType::kBf16 : DataType::kFp8E4m3;
    const RandomMoeModel model(d, i);
    MoeRig rig(d, model);
    ASSERT_EQ(rig.start(), "");
    for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
      const bool decode = phase == MoePhase::kDecode;
      if ((decode ? d.decode_participants : d.prefill_senders) == 0) continue;
      const auto client = rig.connect(phase, 0);
      const int most = decode ? d.max_decode_rows : d.max_prefill_tokens;
      EXPECT_EQ(run_moe(rig, *client, i, 4, most, 2e-5).complaint, "") << "case " << i;
    }
    EXPECT_EQ(rig.stop(), "");
  }
}

// Outputs of decode participant 0 and prefill sender 0, each for itself or with another
// participant's rows in the same operations, the other phase and another sender beside them.
std::pair<std::vector<float>, std::vector<float>> outputs_of(MoeDimensions d,
                                                             const RandomMoeModel& model,
                                                             bool together, uint64_t* preemptions) {
  d.decode_participants = together ? 2 : 1;
  MoeRig rig(d, model);
  EXPECT_EQ(rig.start(), "");
  std::shared_ptr<transport::MoeClient> decode = rig.connect(MoePhase::kDecode, 0);
  std::shared_ptr<transport::MoeClient> prefill = rig.connect(MoePhase::kPrefill, 0);
  std::shared_ptr<transport::MoeClient> noise = rig.connect(MoePhase::kPrefill, 1);
  const auto policy = together ? std::launch::async : std::launch::deferred;
  auto decode_run = std::async(policy, [&] { return run_moe(rig, *decode, 1, 40, 20); });
  auto prefill_run = std::async(policy, [&] { return run_moe(rig, *prefill, 2, 10, 90); });
  auto noise_run = std::async(policy, [&] { return run_moe(rig, *noise, 3, 10, 90); });
  if (together) {
    std::shared_ptr<transport::MoeClient> other = rig.connect(MoePhase::kDecode, 1);
    EXPECT_EQ(run_moe(rig, *other, 4, 40, 20).complaint, "");
  }
  const MoeRun first = decode_run.get(), second = prefill_run.get();
  EXPECT_EQ(first.complaint, "");
  EXPECT_EQ(second.complaint, "");
  EXPECT_EQ(noise_run.get().complaint, "");
  for (const auto& server : rig.servers) *preemptions += server->statistics().preemptions;
  EXPECT_EQ(rig.stop(), "");
  return {first.outputs, second.outputs};
}

TEST(MoeServer, BitsDoNotDependOnClustersPreemptionOrTheOtherPhase) {
  for (const MoeActivation activation : {MoeActivation::kNative, MoeActivation::kFp8}) {
    MoeDimensions d = with(DataType::kFp8E4m3, activation);
    const RandomMoeModel model(d, 5);
    uint64_t preemptions = 0;
    d.clusters = 1;
    const auto alone = outputs_of(d, model, false, &preemptions);
    EXPECT_EQ(preemptions, 0u);
    ASSERT_FALSE(alone.first.empty());
    ASSERT_FALSE(alone.second.empty());
    for (const bool preemption : {true, false}) {
      d.preemption = preemption;
      for (d.clusters = 1; d.clusters <= 4; ++d.clusters) {
        const auto together = outputs_of(d, model, true, &preemptions);
        EXPECT_EQ(alone.first, together.first) << d.clusters << " clusters";
        EXPECT_EQ(alone.second, together.second) << d.clusters << " clusters";
      }
    }
    EXPECT_GT(preemptions, 0u);
  }
}

// The reduction of prefill is the sum that an attention server makes of decode's rows, bit for bit:
// float, ascending expert id.
TEST(MoeServer, PrefillAddsUpWhatDecodeReturns) {
  MoeDimensions d = with(DataType::kBf16, MoeActivation::kNative);
  d.moe_servers = d.decode_participants = 1;
  d.top_k = 5;
  const RandomMoeModel model(d, 11);
  MoeRig rig(d, model);
  ASSERT_EQ(rig.start(), "");
  const auto decode = rig.connect(MoePhase::kDecode, 0);
  const auto prefill = rig.connect(MoePhase::kPrefill, 0);
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    const MoeRows rows = draw_moe_rows(random, d, d.max_decode_rows);
    for (transport::MoeClient* client : {decode.get(), prefill.get()}) {
      ASSERT_TRUE(client->begin_iteration());
      ASSERT_TRUE(
          client->dispatch(0, rows.encoded, {rows.tokens(), d.top_k, rows.ids, rows.weights}));
      ASSERT_TRUE(client->combine(0));
    }
    for (int t = 0; t < rows.tokens(); ++t) {
      ASSERT_EQ(combined_output(*decode, d, t), combined_output(*prefill, d, t));
    }
  }
  EXPECT_EQ(rig.stop(), "");
}

TEST(MoeServer, AStoppedServerIsNotWaitedFor) {
  const MoeDimensions d;
  const RandomMoeModel model(d, 12);
  MoeRig rig(d, model);
  ASSERT_EQ(rig.start(), "");
  const auto client = rig.connect(MoePhase::kPrefill, 0);
  EXPECT_EQ(run_moe(rig, *client, 1, 2, 20).complaint, "");
  ASSERT_TRUE(client->begin_iteration());
  ASSERT_TRUE(client->skip_iteration());  // ready: finished before the stop
  EXPECT_EQ(rig.stop(), "");
  EXPECT_EQ(rig.servers[0]->statistics().prefill_operations % d.layers, 0u);
  ASSERT_TRUE(client->begin_iteration());
  ASSERT_TRUE(client->dispatch(0, {}, {0, d.top_k, {}, {}}));
  EXPECT_EQ(client->combine(0).error().code, ErrorCode::kCancelled);
}

TEST(MoeServer, TenThousandSmallOperationsOfBothPhases) {
  MoeDimensions d;
  d.layers = 4;
  d.hidden = d.intermediate = 16;
  d.microbatches = 2;
  const RandomMoeModel model(d, 6);
  MoeRig rig(d, model);
  ASSERT_EQ(rig.start(), "");
  constexpr int kIterations = 320;
  std::vector<std::future<MoeRun>> runs;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
      for (int member = 0; member < 2; ++member) {
        std::shared_ptr<transport::MoeClient> client = rig.connect(phase, member, microbatch);
        runs.push_back(std::async(std::launch::async, [&rig, client, member] {
          return run_moe(rig, *client, member, kIterations, 6, 1e-5, 0.3);
        }));
      }
    }
  }
  for (auto& run : runs) EXPECT_EQ(run.get().complaint, "");
  EXPECT_EQ(rig.stop(), "");
  uint64_t operations = 0;
  for (const auto& server : rig.servers) {
    const MoeStatistics s = server->statistics();
    EXPECT_EQ(s.decode_operations, 2u * kIterations * d.layers);
    EXPECT_EQ(s.prefill_operations, 4u * kIterations * d.layers);
    EXPECT_EQ(s.open_operations, 0u);
    EXPECT_GT(s.x_moe_decode_mean, 0.0);
    operations += s.decode_operations + s.prefill_operations;
  }
  EXPECT_GE(operations, 10'000u);
}

TEST(MoeServer, IdleWorkersSleep) {
  const MoeDimensions d;
  const RandomMoeModel model(d, 7);
  MoeRig rig(d, model);
  ASSERT_EQ(rig.start(), "");
  const auto client = rig.connect(MoePhase::kPrefill, 0);
  EXPECT_EQ(run_moe(rig, *client, 1, 2, 20).complaint, "");
  const std::clock_t before = std::clock();  // of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used / 0.3, 0.02);
  EXPECT_EQ(rig.stop(), "");
}

class MoeServerFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    d_.moe_servers = 1;
    d_.prefill_senders = d_.decode_participants = 1;
    model_ = std::make_unique<RandomMoeModel>(d_, 8);
    rig_ = std::make_unique<MoeRig>(d_, *model_);
    ASSERT_EQ(rig_->start(), "");
    window_ = *rig_->fabric().open_window("moe0", kSecond);
    layout_ = std::make_unique<transport::MoeBufferLayout>(
        *transport::MoeBufferLayout::plan(rig_->buffers(), 0));
  }
  void signal(size_t word, uint32_t epoch, uint32_t value) {
    window_->signal(word, transport::pack({epoch, value}), transport::kMoeReadyBell);
  }
  // The server aborts; whoever waits is told, and stop() says why.
  void expect_fault(const std::string& part) {
    const auto wait = window_->wait(layout_->done_word(0), transport::kMoeDoneBell,
                                    [](uint64_t) { return false; },
                                    {.waiter = "test", .word = "abort", .limit = 20 * kSecond});
    ASSERT_FALSE(wait);
    EXPECT_EQ(wait.error().code, ErrorCode::kCancelled) << wait.error().message;
    const std::string complaint = rig_->stop();
    EXPECT_NE(complaint.find(part), std::string::npos) << complaint;
  }

  MoeDimensions d_;
  std::unique_ptr<RandomMoeModel> model_;
  std::unique_ptr<MoeRig> rig_;
  std::shared_ptr<transport::Window> window_;
  std::unique_ptr<transport::MoeBufferLayout> layout_;
};

TEST_F(MoeServerFaults, CountBeyondCapacity) {
  signal(layout_->iteration_word(0), 1, 1);
  signal(layout_->ready_word(0, 0, 0), 1, 1000);
  expect_fault("participant 0 announces 999 of at most 48");
}

TEST_F(MoeServerFaults, CountersThatDoNotAddUp) {
  signal(layout_->iteration_word(0), 1, 1);
  window_->reserve(layout_->decode_counter(0, 2), transport::operation_epoch(1, 0, d_.layers), 3);
  signal(layout_->ready_word(0, 0, 0), 1, 3);
  expect_fault("announced 2 rows, the experts' counters hold 3");
}

TEST_F(MoeServerFaults, EpochThatGoesBack) {
  signal(layout_->iteration_word(0), 5, 1);
  signal(layout_->ready_word(0, 0, 0), 5, 1);
  ASSERT_TRUE(window_->wait(layout_->done_word(0), transport::kMoeDoneBell,
                            [](uint64_t bits) { return bits != 0; },
                            {.waiter = "test", .word = "done", .limit = 20 * kSecond}));
  signal(layout_->iteration_word(0), 3, 1);
  expect_fault("went back from epoch 5 to 3");
}

TEST_F(MoeServerFaults, ReadyWordFromTheFuture) {
  signal(layout_->iteration_word(0), 5, 1);
  signal(layout_->ready_word(0, 0, 0), 6, 1);
  expect_fault("participant 0 published epoch 6 in iteration 5");
}

TEST_F(MoeServerFaults, MaskOfStrangers) {
  signal(layout_->iteration_word(0), 1, 2);
  expect_fault("participant mask 0x2 of 1 participants");
}

TEST_F(MoeServerFaults, CombineSlotOutOfRange) {
  signal(layout_->iteration_word(0), 1, 1);
  window_->reserve(layout_->decode_counter(0, 0), transport::operation_epoch(1, 0, d_.layers), 1);
  const uint32_t slot = static_cast<uint32_t>(layout_->decode_slots());
  window_->put(layout_->decode_slot(0, 0, 0), &slot, sizeof(slot));
  signal(layout_->ready_word(0, 0, 0), 1, 2);
  expect_fault("combine slot 48 of 48");
}

TEST_F(MoeServerFaults, ListThatNamesARowNotSent) {
  signal(layout_->iteration_word(1), 1, 1);
  const uint32_t rows[] = {1, 0, 0, 0, 0, 0}, offsets[] = {0, 1};
  const transport::PrefillTokenEntry entry{1, 1.0f};  // padding of the first page
  window_->put(layout_->prefill_expert_rows(0, 0), rows, sizeof(rows));
  window_->put(layout_->prefill_token_offsets(0, 0), offsets, sizeof(offsets));
  window_->put(layout_->prefill_token_entries(0, 0), &entry, sizeof(entry));
  signal(layout_->ready_word(1, 0, 0), 1, 2);
  expect_fault("names a row that was not sent");
}

TEST_F(MoeServerFaults, PrefillRowsThatDoNotAddUp) {
  signal(layout_->iteration_word(1), 1, 1);
  const uint32_t rows[] = {1, 0, 0, 0, 7, 0}, offsets[] = {0, 1};
  window_->put(layout_->prefill_expert_rows(0, 0), rows, sizeof(rows));
  window_->put(layout_->prefill_token_offsets(0, 0), offsets, sizeof(offsets));
  signal(layout_->ready_word(1, 0, 0), 1, 2);
  expect_fault("1 tokens with 1 list entries, 8 rows");
}

TEST_F(MoeServerFaults, AbortFromOutsideEndsEverything) {
  const auto client = rig_->connect(MoePhase::kPrefill, 0);
  EXPECT_EQ(run_moe(*rig_, *client, 1, 3, 20, 1e-5).complaint, "");
  rig_->servers[0]->abort();
  EXPECT_EQ(rig_->servers[0]->stop(10 * kSecond).ok(), true);
  ASSERT_TRUE(client->begin_iteration());
  ASSERT_TRUE(client->dispatch(0, {}, {0, d_.top_k, {}, {}}));
  EXPECT_EQ(client->combine(0).error().code, ErrorCode::kCancelled);
}

TEST(MoeServer, AParticipantThatDoesNotComeIsReportedAndCounted) {
  const MoeDimensions d;
  const RandomMoeModel model(d, 9);
  MoeRig rig(d, model);
  rig.wait_limit = 30 * kMillisecond;
  ASSERT_EQ(rig.start(), "");
  const auto leader = rig.connect(MoePhase::kDecode, 0);
  const auto prefill = rig.connect(MoePhase::kPrefill, 0);
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(leader->dispatch(0, {}, {0, d.top_k, {}, {}}));
  EXPECT_EQ(leader->combine(0).error().code, ErrorCode::kDeadlineExceeded);
  // Others go on, and so does the group without the missing one.
  rig.wait_limit = 60 * kSecond;
  const auto sender = rig.connect(MoePhase::kPrefill, 1);
  EXPECT_EQ(run_moe(rig, *sender, 1, 3, 20, 1e-5).complaint, "");
  EXPECT_EQ(rig.servers[0]->statistics().waits_timed_out, 1u);
  ASSERT_TRUE(leader->set_participants(1));
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(leader->skip_iteration());
  ASSERT_TRUE(leader->begin_iteration());
  EXPECT_EQ(rig.stop(), "");
}

TEST(MoeServer, ConfigurationsThatDoNotFitAreNamed) {
  const MoeDimensions d;
  const RandomMoeModel model(d, 10);
  MoeRig rig(d, model);
  const auto complaint = [&](auto change) {
    MoeServerConfig config = rig.server_config(0);
    change(config);
    auto server = CpuMoeExecutor::create(rig.fabric(), config, model.spec(), model.weights());
    return server ? std::string("none") : server.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(complaint([](auto& c) { c.buffers.top_k = 1; }), "top_k: expected 2, got 1"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.buffers.dispatch_row_bytes = 9; }), "expected 256"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.activation = MoeActivation::kFp8; }), "modulo 128"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.cluster_count = 0; }), "1 to 64, got 0"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.index = 2; }), "server: expected 0 to 1, got 2"));
}

}  // namespace
}  // namespace expertplex::cpu
