// What `bench apk` runs on the persistent kernel: slots of both phases of one model's gate_up GEMM,
// operations sent by a small kernel on an SM of its own, times read from the GPU's clock.
//
// Thread rules: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apk/policy.h"
#include "bench/cuda/gpu_timer.h"
#include "cuda/host/apk_kernel.h"
#include "cuda/reference/gemm_problem.h"

namespace expertplex::bench {

struct GemmName {
  const char* name;  // of the model
  const char* gemm;
  uint32_t columns, k;  // weights: columns x k for each expert
};
constexpr GemmName kGlmGateUp{"glm", "gate_up", 4096, 6144};
constexpr GemmName kGlmDown{"glm", "down", 6144, 2048};
constexpr GemmName kMiniMaxGateUp{"minimax", "gate_up", 3072, 3072};
constexpr GemmName kMiniMaxDown{"minimax", "down", 3072, 1536};

constexpr uint32_t kSharedExperts = 8;
constexpr uint32_t kPrefillRows = 8192;  // an expert
// One SM stays free for the kernel that plays the senders.
constexpr uint32_t kSenderSms = 1;

// An operation slot.
struct WorkloadSlot {
  apk::Phase phase = apk::Phase::kPrefill;
  apk::PipelineRole pipeline = apk::PipelineRole::kMain;
  uint32_t rows = kPrefillRows;  // of each expert
  uint32_t experts = kSharedExperts;
  uint32_t weight_sets = 1;  // its operations take them in turn
};

// From ready word to done word.
struct OperationTime {
  uint64_t sent_ns = 0, done_ns = 0;
  double microseconds() const { return static_cast<double>(done_ns - sent_ns) * 1e-3; }
};

class ApkWorkload {
 public:
  static Result<std::unique_ptr<ApkWorkload>> make(const GemmName& shape,
                                                   const std::vector<WorkloadSlot>& slots);
  ~ApkWorkload();

  // Starts the kernel with all outputs poisoned; `trace_capacity` as in ApkSetup.
  Result<void> start(const apk::SharingPolicy& policy, uint32_t trace_capacity = 0);
  // Stops it and compares every output that was written with an exact reference. Its trace and
  // counters can be read until the next start.
  Result<void> finish();
  Result<void> set_policy(const apk::SharingPolicy& policy) { return kernel_->set_policy(policy); }

  // Appends an operation of slot `slot` to a sender's list: sent when the sender's previous one is
  // done, and not earlier than so long after all senders start.
  void push(uint32_t sender, size_t slot, uint64_t not_before_ns);
  // The same with rows of its own, one number an expert.
  void push(uint32_t sender, size_t slot, uint64_t not_before_ns,
            const std::vector<uint32_t>& rows);
  // Runs all lists to their end and clears them. Result: [sender][operation].
  Result<std::vector<std::vector<OperationTime>>> send_all();

  const GemmName& shape() const { return shape_; }
  const WorkloadSlot& slot(size_t index) const { return slots_[index]; }
  uint32_t ctas() const { return ctas_; }
  const cuda::ApkKernel& kernel() const { return *kernel_; }

 private:
  static constexpr uint32_t kMostSends = 2048;  // of one sender
  struct Slot : WorkloadSlot {
    uint8_t index = 0;   // of its phase
    uint32_t epoch = 0;  // of its latest operation
    std::vector<cuda::GemmProblem> layers;
  };
  explicit ApkWorkload(const GemmName& shape) : shape_(shape) {}

  GemmName shape_;
  uint32_t ctas_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<cuda::ApkKernel> kernel_;
  cuda::MappedArray<cuda::ApkSend> sends_;
  uint32_t counts_[cuda::kMaxApkSenders] = {};
  cudaStream_t stream_ = nullptr;
};

// A policy for the workload: decode operations of the main pipeline get all clusters.
apk::SharingPolicy workload_policy(apk::SwitchMode mode, apk::PausePolicy pause, uint32_t ctas);

}  // namespace expertplex::bench
