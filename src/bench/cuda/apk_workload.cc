#include "bench/cuda/apk_workload.h"

#include <algorithm>

namespace expertplex::bench {
namespace {

using apk::Phase;
using cuda::ApkSend;
using cuda::GemmProblem;

constexpr uint64_t kSendLimitNs = 1'000'000'000;

}  // namespace

Result<std::unique_ptr<ApkWorkload>> ApkWorkload::make(const GemmName& shape,
                                                       const std::vector<WorkloadSlot>& slots) {
  std::unique_ptr<ApkWorkload> workload(new ApkWorkload(shape));
  cudaDeviceProp device;
  EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
  workload->ctas_ = static_cast<uint32_t>(device.multiProcessorCount) - kSenderSms;
  uint8_t next[apk::kPhaseCount] = {};
  uint32_t seed = 1;
  for (const WorkloadSlot& wanted : slots) {
    Slot slot{wanted, 0, 0, {}};
    slot.index = next[apk::phase_index(slot.phase)]++;
    for (uint32_t l = 0; l < slot.weight_sets; ++l) {
      EXPERTPLEX_ASSIGN(
          GemmProblem problem,
          GemmProblem::make({slot.experts, shape.columns, shape.k},
                            std::vector<uint32_t>(slot.experts, slot.rows), {slot.rows}, seed++));
      slot.layers.push_back(std::move(problem));
    }
    workload->slots_.push_back(std::move(slot));
  }
  EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&workload->stream_, cudaStreamNonBlocking));
  EXPERTPLEX_ASSIGN(workload->sends_, cuda::MappedArray<ApkSend>::allocate(size_t{kMostSends} *
                                                                           cuda::kMaxApkSenders));
  return workload;
}

ApkWorkload::~ApkWorkload() {
  kernel_.reset();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Result<void> ApkWorkload::start(const apk::SharingPolicy& policy, uint32_t trace_capacity) {
  kernel_.reset();  // frees, which would wait for the next one's end
  cuda::ApkSetup setup;
  setup.ctas = ctas_;
  setup.policy = policy;
  setup.done_words_on_device = true;
  setup.trace_capacity = trace_capacity;
  for (Slot& slot : slots_) {
    slot.epoch = 0;
    const cuda::GemmTiling tiling = cuda::gemm_tiling(slot.phase, slot.pipeline);
    cuda::ApkSlotSetup s;
    s.shape.phase = slot.phase;
    s.shape.pipeline = slot.pipeline;
    s.shape.slot = slot.index;
    s.shape.experts = static_cast<uint16_t>(slot.experts);
    s.shape.intermediate = shape_.columns;
    s.shape.gate_up = {tiling.rows, tiling.columns};
    s.shape.row_group = 8;
    s.shape.max_row_blocks = slot.experts * ((slot.rows + tiling.rows - 1) / tiling.rows);
    for (GemmProblem& problem : slot.layers) {
      EXPERTPLEX_TRY(problem.poison());
      EXPERTPLEX_ASSIGN(auto binding,
                        cuda::make_gemm_binding(problem.operands(), slot.phase, slot.pipeline));
      s.layers.push_back(binding);
    }
    setup.slots.push_back(std::move(s));
  }
  EXPERTPLEX_ASSIGN(kernel_, cuda::ApkKernel::start(setup));
  return {};
}

Result<void> ApkWorkload::finish() {
  EXPERTPLEX_TRY(kernel_->stop(5 * kSecond));
  for (const Slot& slot : slots_) {
    for (uint32_t l = 0; l < slot.layers.size() && l < slot.epoch; ++l) {
      EXPERTPLEX_ASSIGN(const cuda::GemmErrors e, cuda::compare_with_reference(slot.layers[l], 61));
      if (e.relative_l2 < 2e-3 && e.unwritten == 0 && e.overwritten == 0) continue;
      return make_error(ErrorCode::kInternal,
                        "{} {} output: relative error {:.2e} (limit 2e-3), {} elements unwritten, "
                        "{} overwritten",
                        shape_.name, apk::phase_name(slot.phase), e.relative_l2, e.unwritten,
                        e.overwritten);
    }
  }
  return {};
}

void ApkWorkload::push(uint32_t sender, size_t slot, uint64_t not_before_ns) {
  push(sender, slot, not_before_ns, std::vector<uint32_t>(slots_[slot].experts, slots_[slot].rows));
}

void ApkWorkload::push(uint32_t sender, size_t index, uint64_t not_before_ns,
                       const std::vector<uint32_t>& rows) {
  Slot& slot = slots_[index];
  EXPERTPLEX_CHECK(counts_[sender] < kMostSends, "sender {} has {} operations", sender,
                   counts_[sender]);
  ApkSend& send = sends_[size_t{sender} * kMostSends + counts_[sender]++];
  send = ApkSend{};
  send.slot = kernel_->mailbox(slot.phase, slot.index);
  send.done = kernel_->done_word(slot.phase, slot.index);
  send.layer = slot.epoch % static_cast<uint32_t>(slot.layers.size());
  send.epoch = ++slot.epoch;
  send.experts = slot.experts;
  send.not_before_ns = not_before_ns;
  std::copy(rows.begin(), rows.end(), send.rows);
}

Result<std::vector<std::vector<OperationTime>>> ApkWorkload::send_all() {
  cuda::ApkSenders senders;
  for (uint32_t s = 0; s < cuda::kMaxApkSenders; ++s) {
    senders.sender[s] = {sends_.data() + size_t{s} * kMostSends, counts_[s]};
  }
  EXPERTPLEX_CUDA_TRY(cuda::launch_apk_senders(senders, kSendLimitNs, stream_));
  EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(stream_));
  std::vector<std::vector<OperationTime>> times(cuda::kMaxApkSenders);
  for (uint32_t s = 0; s < cuda::kMaxApkSenders; ++s) {
    for (uint32_t i = 0; i < counts_[s]; ++i) {
      const ApkSend& send = sends_[size_t{s} * kMostSends + i];
      if (send.done_ns == 0) {
        return make_error(ErrorCode::kDeadlineExceeded, "{}: sender {}: operation {} not done",
                          shape_.name, s, i);
      }
      times[s].push_back({send.sent_ns, send.done_ns});
    }
    counts_[s] = 0;
  }
  return times;
}

apk::SharingPolicy workload_policy(apk::SwitchMode mode, apk::PausePolicy pause, uint32_t ctas) {
  apk::SharingPolicy policy;
  policy.mode = mode;
  policy.pause = pause;
  policy.budget = {.decode_sms = ctas,
                   .max_decode_sms = ctas,
                   .expected_footprint_milli = 0,
                   .sms_per_cluster = 1};
  return policy;
}

}  // namespace expertplex::bench
