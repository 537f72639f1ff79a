// A hundred thousand operations of both phases at random times and sizes, under policies that
// change while they run, on many, some and few SMs: no hang, no lost row, no changed bit.
#include "cuda/apk_stress.h"

#include "cuda/apk_kernel_fixture.h"

namespace expertplex::cuda {
namespace {

struct StressRun {
  uint32_t ctas, operations;  // of each slot
};

class ApkStressTest : public ApkKernelTest {
 protected:
  static constexpr uint32_t kStressCapacity = 160;

  void add_stress_slot(Phase phase, PipelineRole pipeline, uint8_t slot, uint32_t most_rows,
                       const GemmShape& shape) {
    ASSERT_NO_FATAL_FAILURE(add_slot(phase, pipeline, slot, most_rows, shape, kStressCapacity));
    auto copy = DeviceBuffer<uint16_t>::copy_of(slots_.back().expected);
    ASSERT_TRUE(copy) << copy.error().message;
    expected_.push_back(std::move(copy.value()));
  }

  StressSlots stress_slots() const {
    StressSlots result;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const SlotUnderTest& s = slots_[i];
      result.slot[i] = {kernel_->mailbox(s.phase, s.slot),
                        kernel_->done_word(s.phase, s.slot),
                        reinterpret_cast<uint16_t*>(s.problem.output.data()),
                        expected_[i].data(),
                        s.problem.shape.experts,
                        kStressCapacity,
                        s.problem.shape.columns,
                        s.most_rows};
    }
    return result;
  }

  // Policies follow one another until the senders are through.
  void change_policies() {
    using apk::PausePolicy;
    using apk::SwitchMode;
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      const auto policy =
          sharing(static_cast<SwitchMode>(random_() % 3), static_cast<PausePolicy>(random_() % 4));
      const auto set = kernel_->set_policy(policy);
      ASSERT_TRUE(set) << set.error().message;
    }
  }

  void run_stress(const StressRun& r) {
    for (SlotUnderTest& s : slots_) ASSERT_NO_FATAL_FAILURE(poison(s));
    auto results = DeviceBuffer<StressResult>::copy_of(std::vector<StressResult>(slots_.size()));
    ASSERT_TRUE(results);
    ApkSetup setup;
    setup.done_words_on_device = true;
    ASSERT_NO_FATAL_FAILURE(start(r.ctas, sharing(apk::SwitchMode::kParking, {}), setup));
    ASSERT_EQ(launch_stress(stress_slots(), static_cast<uint32_t>(slots_.size()), r.operations,
                            kPoisonValue, r.ctas, kLimit, results.value().data(), stream_),
              cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(change_policies());
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const auto stopped = kernel_->stop(kLimit);
    EXPECT_TRUE(stopped) << stopped.error().message;
    kernel_.reset();
    std::vector<StressResult> seen(slots_.size());
    ASSERT_EQ(cudaMemcpy(seen.data(), results.value().data(), seen.size() * sizeof(StressResult),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (size_t i = 0; i < seen.size(); ++i) {
      const StressResult& got = seen[i];
      EXPECT_EQ(got.operations, r.operations)
          << r.ctas << " CTAs, " << apk::phase_name(slots_[i].phase) << " slot "
          << int{slots_[i].slot} << ": "
          << (got.fault == StressFault::kNotDone ? "not done" : "wrong bits") << ", epoch "
          << got.epoch << " expert " << got.expert << " row " << got.row << " of " << got.rows
          << " column " << got.column << ": " << std::hex << got.got << ", expected "
          << got.expected;
    }
  }

  std::vector<DeviceBuffer<uint16_t>> expected_;
};

TEST_F(ApkStressTest, AHundredThousandRandomOperations) {
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kPrefill, PipelineRole::kMain, 0, 160, {3, 512, 1536}));
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kPrefill, PipelineRole::kMain, 1, 160, {2, 256, 1024}));
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kDecode, PipelineRole::kResident, 0, 16, {5, 512, 1024}));
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kDecode, PipelineRole::kResident, 1, 40, {3, 256, 2048}));
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kDecode, PipelineRole::kMain, 2, 128, {4, 512, 1024}));
  ASSERT_NO_FATAL_FAILURE(
      add_stress_slot(Phase::kDecode, PipelineRole::kMain, 3, 20, {2, 512, 768}));
  ASSERT_EQ(prepare_stress(), cudaSuccess);
  const auto free_sms = static_cast<uint32_t>(slots_.size());
  // 6 slots: 100,008 operations in all.
  for (const StressRun& r :
       {StressRun{sms_ - free_sms, 10'000}, StressRun{37, 6'000}, StressRun{3, 668}}) {
    ASSERT_NO_FATAL_FAILURE(run_stress(r));
  }
}

}  // namespace
}  // namespace expertplex::cuda
