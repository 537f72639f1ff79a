// The adaptive persistent kernel on a GPU: operations of both phases, made ready at random times,
// give the bits that a plain launch gives, whatever runs beside them.
#include "cuda/host/apk_kernel.h"

#include <gtest/gtest.h>

#include <random>

#include "cuda/reference/gemm_problem.h"

namespace expertplex::cuda {
namespace {

using apk::Phase;
using apk::PipelineRole;

constexpr uint32_t kCapacity = 384;  // rows of an expert
constexpr Nanoseconds kLimit = 5 * kSecond;
constexpr uint16_t kPoisonValue = 0x7f7f;  // nothing that these problems give

// One slot's problem, what its operations must give, and a stream of its own: the default stream
// would wait for the persistent kernel.
struct SlotUnderTest {
  Phase phase;
  PipelineRole pipeline;
  uint8_t slot;
  uint32_t most_rows;
  GemmProblem problem;
  std::vector<uint16_t> expected;
  uint32_t epoch = 0;
  std::vector<uint32_t> rows;
};

class ApkKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no Hopper GPU on this machine";
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    int sms = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    sms_ = static_cast<uint32_t>(sms);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void add_slot(Phase phase, PipelineRole pipeline, uint8_t slot, uint32_t most_rows,
                const GemmShape& shape) {
    const std::vector<uint32_t> all(shape.experts, kCapacity);
    auto problem = GemmProblem::make(shape, all, {kCapacity}, 100 + slots_.size());
    ASSERT_TRUE(problem) << problem.error().message;
    const auto operation =
        GemmOperation::make(problem.value().operands(), phase, pipeline, all, {kCapacity});
    ASSERT_TRUE(operation) << operation.error().message;
    const bool resident = pipeline == PipelineRole::kResident;
    ASSERT_TRUE(launch_grouped_gemm(compiled_gemm_configs()[0],
                                    resident ? nullptr : &operation.value(),
                                    resident ? &operation.value() : nullptr, sms_, nullptr));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    auto expected = problem.value().read_output();
    ASSERT_TRUE(expected);
    poison_.resize(std::max(poison_.size(), expected.value().size()), kPoisonValue);
    slots_.push_back({phase,
                      pipeline,
                      slot,
                      most_rows,
                      std::move(problem.value()),
                      std::move(expected.value()),
                      0,
                      {}});
  }

  void start(uint32_t ctas, const apk::SharingPolicy& policy) {
    ApkSetup setup;
    setup.ctas = ctas;
    setup.policy = policy;
    for (const SlotUnderTest& s : slots_) {
      const GemmTiling tiling = gemm_tiling(s.phase, s.pipeline);
      ApkSlotSetup slot;
      slot.shape.phase = s.phase;
      slot.shape.pipeline = s.pipeline;
      slot.shape.slot = s.slot;
      slot.shape.experts = s.problem.shape.experts;
      slot.shape.intermediate = s.problem.shape.columns;
      slot.shape.gate_up = {tiling.rows, tiling.columns};
      slot.shape.row_group = 8;
      slot.shape.commits_per_tile = s.pipeline == PipelineRole::kMain ? 2 : 1;
      slot.shape.max_row_blocks =
          s.problem.shape.experts * ((kCapacity + tiling.rows - 1) / tiling.rows);
      auto binding = make_gemm_binding(s.problem.operands(), s.phase, s.pipeline);
      ASSERT_TRUE(binding) << binding.error().message;
      slot.layers.push_back(binding.value());
      setup.slots.push_back(std::move(slot));
    }
    auto kernel = ApkKernel::start(setup);
    ASSERT_TRUE(kernel) << kernel.error().message;
    kernel_ = std::move(kernel.value());
  }

  void signal(SlotUnderTest& s) {
    // By a copy engine: the persistent kernel has all registers of its SMs, so no memset would run.
    ASSERT_EQ(cudaMemcpyAsync(s.problem.output.data(), poison_.data(), s.problem.output.size() * 2,
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    s.rows.resize(s.problem.shape.experts);
    for (uint32_t& r : s.rows) r = random_() % 4 == 0 ? 0 : random_() % (s.most_rows + 1);
    const auto sent = kernel_->signal(s.phase, s.slot, ++s.epoch, 0, s.rows);
    ASSERT_TRUE(sent) << sent.error().message;
  }

  void check(SlotUnderTest& s) {
    const auto done = kernel_->wait_done(s.phase, s.slot, s.epoch, kLimit);
    ASSERT_TRUE(done) << done.error().message;
    std::vector<uint16_t> got(s.problem.output.size());
    ASSERT_EQ(cudaMemcpyAsync(got.data(), s.problem.output.data(), got.size() * 2,
                              cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const uint32_t columns = s.problem.shape.columns;
    for (uint32_t e = 0; e < s.problem.shape.experts; ++e) {
      for (uint32_t r = 0; r < kCapacity; ++r) {
        const size_t row = (size_t{e} * kCapacity + r) * columns;
        for (uint32_t c = 0; c < columns; ++c) {
          const uint16_t want = r < s.rows[e] ? s.expected[row + c] : kPoisonValue;
          ASSERT_EQ(got[row + c], want)
              << apk::phase_name(s.phase) << " slot " << int{s.slot} << " epoch " << s.epoch
              << " expert " << e << " row " << r << " of " << s.rows[e] << " column " << c;
        }
      }
    }
  }

  // Rounds in which every slot runs one operation, all at once, signalled in random order.
  void run_rounds(uint32_t rounds) {
    for (uint32_t i = 0; i < rounds; ++i) {
      std::shuffle(slots_.begin(), slots_.end(), random_);
      for (SlotUnderTest& s : slots_) {
        if (random_() % 8 == 0) continue;
        ASSERT_NO_FATAL_FAILURE(signal(s));
      }
      for (SlotUnderTest& s : slots_) {
        if (s.epoch == 0) continue;
        ASSERT_NO_FATAL_FAILURE(check(s));
      }
    }
  }

  static apk::SharingPolicy sharing(apk::SwitchMode mode, apk::PausePolicy pause) {
    apk::SharingPolicy policy;
    policy.mode = mode;
    policy.pause = pause;
    policy.budget = {.decode_sms = 32,
                     .max_decode_sms = 64,
                     .expected_footprint_milli = 0,
                     .sms_per_cluster = 1};
    return policy;
  }

  std::vector<uint16_t> poison_;
  cudaStream_t stream_ = nullptr;
  uint32_t sms_ = 0;
  std::vector<SlotUnderTest> slots_;
  std::unique_ptr<ApkKernel> kernel_;
  std::mt19937 random_{7};
};

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
      for (const SwitchMode mode : {SwitchMode::kTileSwitching, SwitchMode::kTwoPipelines}) {
        for (SlotUnderTest& s : slots_) s.epoch = 0;
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
  slots_[0].epoch = 0;
  ASSERT_NO_FATAL_FAILURE(start(sms_, sharing(apk::SwitchMode::kTileSwitching, {})));
  ASSERT_NO_FATAL_FAILURE(run_rounds(2));
  ASSERT_TRUE(kernel_->stop(kLimit));
}

}  // namespace
}  // namespace expertplex::cuda
