// What tests of the adaptive persistent kernel share: slots with a problem each, whose outputs are
// known from a plain launch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "cuda/host/apk_kernel.h"
#include "cuda/host/grouped_gemm.h"
#include "cuda/reference/gemm_problem.h"

namespace expertplex::cuda {

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
                const GemmShape& shape, uint32_t capacity = kCapacity) {
    const std::vector<uint32_t> all(shape.experts, capacity);
    auto problem = GemmProblem::make(shape, all, {capacity}, 100 + slots_.size());
    ASSERT_TRUE(problem) << problem.error().message;
    const auto operation =
        GemmOperation::make(problem.value().operands(), phase, pipeline, all, {capacity});
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

  // The slots' templates and bindings, added to `setup`.
  ApkSetup fill(uint32_t ctas, const apk::SharingPolicy& policy, ApkSetup setup = {}) const {
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
      slot.shape.max_row_blocks =
          s.problem.shape.experts * ((kCapacity + tiling.rows - 1) / tiling.rows);
      auto binding = make_gemm_binding(s.problem.operands(), s.phase, s.pipeline);
      EXPECT_TRUE(binding) << binding.error().message;
      if (binding) slot.layers.push_back(binding.value());
      setup.slots.push_back(std::move(slot));
    }
    return setup;
  }

  void start(uint32_t ctas, const apk::SharingPolicy& policy, ApkSetup setup = {}) {
    for (SlotUnderTest& s : slots_) s.epoch = 0;
    auto kernel = ApkKernel::start(fill(ctas, policy, std::move(setup)));
    ASSERT_TRUE(kernel) << kernel.error().message;
    kernel_ = std::move(kernel.value());
  }

  void poison(SlotUnderTest& s) {
    // By a copy engine: the persistent kernel has all registers of its SMs, so no memset would run.
    ASSERT_EQ(cudaMemcpyAsync(s.problem.output.data(), poison_.data(), s.problem.output.size() * 2,
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  void signal(SlotUnderTest& s) {
    ASSERT_NO_FATAL_FAILURE(poison(s));
    s.rows.resize(s.problem.shape.experts);
    for (uint32_t& r : s.rows) r = random_() % 4 == 0 ? 0 : random_() % (s.most_rows + 1);
    const auto sent = kernel_->signal(s.phase, s.slot, ++s.epoch, 0, s.rows);
    ASSERT_TRUE(sent) << sent.error().message;
  }

  void check(SlotUnderTest& s) {
    const auto done = kernel_->wait_done(s.phase, s.slot, s.epoch, kLimit);
    ASSERT_TRUE(done) << done.error().message;
    check_output(s);
  }

  void check_output(SlotUnderTest& s) {
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

}  // namespace expertplex::cuda
