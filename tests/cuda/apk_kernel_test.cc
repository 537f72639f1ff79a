// The adaptive persistent kernel on a GPU: operations of both phases, made ready at random times,
// give the bits that a plain launch gives, whatever runs beside them.
#include "cuda/host/apk_kernel.h"

#include "cuda/apk_kernel_fixture.h"
#include "cuda/host/apk_moe_executor.h"

namespace expertplex::cuda {
namespace {

TEST_F(ApkKernelTest, StartsAndStops) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 300, {2, 256, 256}));
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(start(sms_, sharing(apk::SwitchMode::kTileSwitching, {})));
    const auto stopped = kernel_->stop(kLimit);
    ASSERT_TRUE(stopped) << stopped.error().message;
    kernel_.reset();
  }
}

TEST_F(ApkKernelTest, OnePhase) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 300, {4, 512, 1536}));
  ASSERT_NO_FATAL_FAILURE(start(sms_, sharing(apk::SwitchMode::kTileSwitching, {})));
  ASSERT_NO_FATAL_FAILURE(run_rounds(20));
  const auto stopped = kernel_->stop(kLimit);
  ASSERT_TRUE(stopped) << stopped.error().message;
}

TEST_F(ApkKernelTest, BothPhasesUnderEveryPolicy) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {4, 1024, 1536}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 1, 100, {3, 512, 768}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kResident, 0, 40, {5, 512, 1536}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kMain, 1, 128, {4, 512, 2048}));
  using apk::PausePolicy;
  using apk::SwitchMode;
  for (const uint32_t ctas : {sms_, 7u}) {
    for (const PausePolicy pause :
         {PausePolicy::kNever, PausePolicy::kWindow2, PausePolicy::kWindow1, PausePolicy::kAll}) {
      for (const SwitchMode mode :
           {SwitchMode::kTileSwitching, SwitchMode::kTwoPipelines, SwitchMode::kParking}) {
        ASSERT_NO_FATAL_FAILURE(start(ctas, sharing(mode, pause)));
        ASSERT_NO_FATAL_FAILURE(run_rounds(12));
        const auto stopped = kernel_->stop(kLimit);
        ASSERT_TRUE(stopped) << stopped.error().message;
        kernel_.reset();
      }
    }
  }
}

TEST_F(ApkKernelTest, ARequestThatDoesNotFitIsNamed) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kMain, 0, 300, {2, 256, 256}));
  ASSERT_NO_FATAL_FAILURE(start(4, sharing(apk::SwitchMode::kTileSwitching, {})));
  const std::vector<uint32_t> rows = {100000, 0};
  ASSERT_TRUE(kernel_->signal(Phase::kDecode, 0, 1, 0, rows));
  const auto done = kernel_->wait_done(Phase::kDecode, 0, 1, kLimit);
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("more row blocks than the capacity"), std::string::npos)
      << done.error().message;
}

TEST_F(ApkKernelTest, AbortLeavesWorkBehindAndSaysSo) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {4, 1024, 1536}));
  ASSERT_NO_FATAL_FAILURE(start(1, sharing(apk::SwitchMode::kTileSwitching, {})));
  ASSERT_NO_FATAL_FAILURE(signal(slots_[0]));
  kernel_.reset();  // aborts; the next kernel starts on a free device
  ASSERT_NO_FATAL_FAILURE(start(sms_, sharing(apk::SwitchMode::kTileSwitching, {})));
  ASSERT_NO_FATAL_FAILURE(run_rounds(2));
  ASSERT_TRUE(kernel_->stop(kLimit));
}

// Producers that a pause holds back in mid-tile leave as well, whenever the abort comes.
TEST_F(ApkKernelTest, AbortUnderAPause) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {8, 1024, 6144}));
  ASSERT_NO_FATAL_FAILURE(
      add_slot(Phase::kDecode, PipelineRole::kResident, 0, 40, {8, 1024, 6144}));
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        start(1 + i % 2, sharing(apk::SwitchMode::kTwoPipelines, apk::PausePolicy::kAll)));
    for (SlotUnderTest& s : slots_) ASSERT_NO_FATAL_FAILURE(signal(s));
    for (uint32_t j = 0; j < i; ++j) ASSERT_TRUE(kernel_->read_counters());  // later each time
    ASSERT_TRUE(kernel_->request_abort());
    const auto left = kernel_->wait_left(kLimit);
    ASSERT_TRUE(left) << left.error().message;
  }
  ASSERT_NO_FATAL_FAILURE(
      start(sms_, sharing(apk::SwitchMode::kTwoPipelines, apk::PausePolicy::kAll)));
  ASSERT_NO_FATAL_FAILURE(run_rounds(2));
  ASSERT_TRUE(kernel_->stop(kLimit));
}

// Decode of the main pipeline while prefill tiles are under way: their accumulators are put by and
// fetched again, and no bit changes.
TEST_F(ApkKernelTest, InterruptedTilesGoOn) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {8, 1024, 6144}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kMain, 0, 128, {4, 512, 2048}));
  ApkSetup setup;
  setup.trace_capacity = 4096;
  constexpr uint32_t kCtas = 8;
  ASSERT_NO_FATAL_FAILURE(start(kCtas, sharing(apk::SwitchMode::kParking, {}), std::move(setup)));
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_NO_FATAL_FAILURE(signal(slots_[0]));
    for (uint32_t d = 0; d < 5; ++d) {
      ASSERT_NO_FATAL_FAILURE(signal(slots_[1]));
      ASSERT_NO_FATAL_FAILURE(check(slots_[1]));
    }
    ASSERT_NO_FATAL_FAILURE(check(slots_[0]));
  }
  ASSERT_TRUE(kernel_->stop(kLimit));
  size_t resumed = 0;
  for (uint32_t cta = 0; cta < kCtas; ++cta) {
    const auto events = kernel_->read_trace(cta, ApkTraceKind::kMainLoads);
    ASSERT_TRUE(events) << events.error().message;
    for (const ApkTraceEvent& event : events.value()) resumed += event.first_k > 0;
  }
  EXPECT_GT(resumed, 10u);
}

TEST_F(ApkKernelTest, OneShotRunsWhatIsReadyAndLeaves) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {4, 1024, 1536}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kResident, 0, 40, {5, 512, 1536}));
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kMain, 1, 128, {4, 512, 2048}));
  ApkSetup setup;
  setup.one_shot = true;
  for (SlotUnderTest& s : slots_) {
    ASSERT_NO_FATAL_FAILURE(poison(s));
    for (uint32_t e = 0; e < s.problem.shape.experts; ++e) {
      s.rows.push_back(e == 1 ? 0 : random_() % (s.most_rows + 1));
    }
    setup.ready.push_back({s.phase, s.slot, 1, 0, s.rows});
  }
  ASSERT_NO_FATAL_FAILURE(
      start(sms_, sharing(apk::SwitchMode::kParking, apk::PausePolicy::kAll), std::move(setup)));
  const auto left = kernel_->wait_left(kLimit);
  ASSERT_TRUE(left) << left.error().message;
  for (SlotUnderTest& s : slots_) ASSERT_NO_FATAL_FAILURE(check_output(s));
}

TEST_F(ApkKernelTest, AnOperationThatTakesTooLongIsNamed) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kPrefill, PipelineRole::kMain, 0, 384, {8, 1024, 6144}));
  ApkSetup setup;
  setup.operation_limit = 20'000;  // of some 400,000 that it takes on two SMs
  ASSERT_NO_FATAL_FAILURE(start(2, sharing(apk::SwitchMode::kParking, {}), std::move(setup)));
  ASSERT_NO_FATAL_FAILURE(poison(slots_[0]));
  ASSERT_TRUE(kernel_->signal(Phase::kPrefill, 0, 1, 0, std::vector<uint32_t>(8, 384)));
  const auto done = kernel_->wait_done(Phase::kPrefill, 0, 1, kLimit);
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("prefill slot 0 epoch 1"), std::string::npos)
      << done.error().message;
  EXPECT_NE(done.error().message.find("of 128 tiles committed"), std::string::npos)
      << done.error().message;
  const auto left = kernel_->wait_left(kLimit);
  ASSERT_FALSE(left);  // it reports the same
}

TEST_F(ApkKernelTest, TheMoeExecutorStartsCountsAndStops) {
  ASSERT_NO_FATAL_FAILURE(add_slot(Phase::kDecode, PipelineRole::kResident, 0, 16, {3, 512, 1024}));
  ApkMoeExecutor executor(fill(sms_, sharing(apk::SwitchMode::kTwoPipelines, {})));
  executor.abort();  // before a start it does nothing
  EXPECT_EQ(executor.statistics().decode_tiles, 0u);
  ASSERT_TRUE(executor.start());
  SlotUnderTest& s = slots_[0];
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    s.rows = {16, 0, epoch};
    ASSERT_NO_FATAL_FAILURE(poison(s));
    ASSERT_TRUE(executor.kernel().signal(s.phase, s.slot, epoch, 0, s.rows));
    const auto done = executor.kernel().wait_done(s.phase, s.slot, epoch, kLimit);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_NO_FATAL_FAILURE(check_output(s));
  }
  const auto stopped = executor.stop(kLimit);
  ASSERT_TRUE(stopped) << stopped.error().message;
  const MoeStatistics statistics = executor.statistics();
  EXPECT_EQ(statistics.decode_operations, 3u);
  EXPECT_EQ(statistics.decode_tiles, 3u * 2 * 512 / 128);
  EXPECT_EQ(statistics.x_moe_decode_mean, 2.0);
  EXPECT_EQ(statistics.open_operations, 0u);
  EXPECT_EQ(statistics.prefill_tiles, 0u);
}

}  // namespace
}  // namespace expertplex::cuda
