#include "cuda/host/apk_kernel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "apk/operation_slot.h"

namespace expertplex::cuda {
namespace {

uint64_t load_word(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}

// Looks at `done` until it holds or the limit passes. A mapped word has no one to wake us.
template <typename Condition>
bool poll(const Condition& done, Nanoseconds limit) {
  const Nanoseconds deadline = now_ns() + limit;
  while (!done()) {
    if (now_ns() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

apk::SchedulerLimits limits_of(const ApkSetup& setup) {
  apk::SchedulerLimits limits;
  limits.clusters = setup.ctas;
  for (const ApkSlotSetup& slot : setup.slots) {
    const uint32_t p = apk::phase_index(slot.shape.phase);
    limits.slots[p] = std::max<uint32_t>(limits.slots[p], slot.shape.slot + 1u);
    limits.experts = std::max(limits.experts, slot.shape.experts);
    limits.row_blocks[p] = std::max(limits.row_blocks[p], slot.shape.max_row_blocks);
  }
  return limits;
}

}  // namespace

Result<std::unique_ptr<ApkKernel>> ApkKernel::start(const ApkSetup& setup) {
  std::unique_ptr<ApkKernel> kernel(new ApkKernel());
  ApkParameters& p = kernel->parameters_;
  p.limits = limits_of(setup);
  EXPERTPLEX_CHECK(apk::valid_limits(p.limits), "{} clusters, {} slots", setup.ctas,
                   setup.slots.size());
  EXPERTPLEX_CHECK(p.limits.experts <= kApkMaxExperts, "{} experts", p.limits.experts);
  const uint32_t slot_count = p.limits.slots[0] + p.limits.slots[1];
  for (const ApkSlotSetup& slot : setup.slots) {
    p.layers = std::max<uint32_t>(p.layers, static_cast<uint32_t>(slot.layers.size()));
  }

  std::vector<uint8_t> storage(apk::storage_bytes(p.limits) + apk::kStorageAlignment);
  void* aligned = storage.data();
  size_t space = storage.size();
  std::align(apk::kStorageAlignment, apk::storage_bytes(p.limits), aligned, space);
  apk::initialise_storage(p.limits, aligned);
  std::vector<GemmBinding> bindings(size_t{slot_count} * p.layers);
  for (const ApkSlotSetup& slot : setup.slots) {
    const apk::OperationFault fault = apk::install_template(p.limits, aligned, slot.shape);
    if (fault != apk::OperationFault::kNone) {
      return make_error(ErrorCode::kInvalidArgument, "operation template ({} slot {}): {}",
                        apk::phase_name(slot.shape.phase), slot.shape.slot,
                        apk::operation_fault_name(fault));
    }
    const uint32_t index = apk_slot_index(p.limits, slot.shape.phase, slot.shape.slot);
    std::copy(slot.layers.begin(), slot.layers.end(), bindings.begin() + size_t{index} * p.layers);
  }
  EXPERTPLEX_ASSIGN(kernel->storage_,
                    DeviceBuffer<uint8_t>::copy_of(
                        {static_cast<const uint8_t*>(aligned), apk::storage_bytes(p.limits)}));
  EXPERTPLEX_ASSIGN(kernel->bindings_, DeviceBuffer<GemmBinding>::copy_of(bindings));
  EXPERTPLEX_ASSIGN(kernel->slots_,
                    DeviceBuffer<ApkSlot>::copy_of(std::vector<ApkSlot>(slot_count)));
  EXPERTPLEX_ASSIGN(kernel->policy_, DeviceBuffer<apk::SharingPolicy>::copy_of({&setup.policy, 1}));
  EXPERTPLEX_ASSIGN(kernel->done_, MappedArray<ApkWord>::allocate(slot_count));
  const uint32_t run_on = 0;
  EXPERTPLEX_ASSIGN(kernel->stop_, DeviceBuffer<uint32_t>::copy_of({&run_on, 1}));
  EXPERTPLEX_ASSIGN(kernel->report_, MappedArray<ApkReport>::allocate(1));
  EXPERTPLEX_ASSIGN(kernel->staging_, MappedArray<ApkSlot>::allocate(slot_count));
  p.scheduler = kernel->storage_.data();
  p.bindings = kernel->bindings_.data();
  p.slots = kernel->slots_.data();
  EXPERTPLEX_ASSIGN(kernel->device_done_,
                    DeviceBuffer<ApkWord>::copy_of(std::vector<ApkWord>(slot_count)));
  p.done = setup.done_words_on_device ? kernel->device_done_.data() : kernel->done_.data();
  p.policy = kernel->policy_.data();
  p.stop_word = kernel->stop_.data();
  p.report = kernel->report_.data();
  EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&kernel->kernel_stream_, cudaStreamNonBlocking));
  EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&kernel->copy_stream_, cudaStreamNonBlocking));
  EXPERTPLEX_CUDA_TRY(prepare_apk_kernels());
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  EXPERTPLEX_CUDA_TRY(launch_apk(p, kernel->kernel_stream_));
  kernel->running_ = true;
  return kernel;
}

ApkKernel::~ApkKernel() {
  constexpr Nanoseconds kLimit = 2'000'000'000;
  if (running_) {
    const Result<void> left = leave(2, kLimit);
    // Freeing its memory would wait for it for ever.
    EXPERTPLEX_CHECK(!running_, "adaptive persistent kernel: {}", left.error().message);
  }
  if (kernel_stream_ != nullptr) cudaStreamDestroy(kernel_stream_);
  if (copy_stream_ != nullptr) cudaStreamDestroy(copy_stream_);
}

ApkSlot* ApkKernel::mailbox(apk::Phase phase, uint32_t slot) const {
  return slots_.data() + apk_slot_index(parameters_.limits, phase, slot);
}

const ApkWord* ApkKernel::done_word(apk::Phase phase, uint32_t slot) const {
  return parameters_.done + apk_slot_index(parameters_.limits, phase, slot);
}

Result<void> ApkKernel::signal(apk::Phase phase, uint32_t slot, uint32_t epoch, uint32_t layer,
                               std::span<const uint32_t> rows_per_expert) {
  EXPERTPLEX_CHECK(rows_per_expert.size() <= kApkMaxExperts, "{}", rows_per_expert.size());
  const uint32_t index = apk_slot_index(parameters_.limits, phase, slot);
  ApkSlot& staged = staging_[index];
  staged.request.layer = layer;
  std::copy(rows_per_expert.begin(), rows_per_expert.end(), staged.rows_per_expert);
  staged.ready.value = apk::pack_epoch_value(epoch, 1);
  ApkSlot* mailbox = slots_.data() + index;
  // Two copies of one stream: the request lies there before the ready word.
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(&mailbox->request, &staged.request,
                                      sizeof(ApkSlot) - offsetof(ApkSlot, request),
                                      cudaMemcpyHostToDevice, copy_stream_));
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(&mailbox->ready, &staged.ready, sizeof(uint64_t),
                                      cudaMemcpyHostToDevice, copy_stream_));
  return cuda_result(cudaStreamSynchronize(copy_stream_), "signal");
}

Error ApkKernel::reported(const std::string& what) const {
  const ApkReport& report = report_[0];
  if (report.fault == ApkFault::kNone) {
    return make_error(ErrorCode::kDeadlineExceeded, "{}: the kernel reports nothing", what);
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: {} slot {} epoch {}: {}", what,
                    apk::phase_name(report.phase), report.slot, report.epoch,
                    apk::operation_fault_name(static_cast<apk::OperationFault>(report.detail)));
}

Result<void> ApkKernel::wait_done(apk::Phase phase, uint32_t slot, uint32_t epoch,
                                  Nanoseconds limit) const {
  ApkWord& word = done_[apk_slot_index(parameters_.limits, phase, slot)];
  const uint64_t expected = apk::pack_epoch_value(epoch, 1);
  const auto ended = [&] {
    return load_word(word.value) == expected || report_[0].fault != ApkFault::kNone;
  };
  const bool in_time = poll(ended, limit);
  if (in_time && load_word(word.value) == expected) return {};
  return reported(fmt::format("done word of {} slot {}: expected epoch {}, seen {}, waited {} ms",
                              apk::phase_name(phase), slot, epoch, load_word(word.value) >> 32,
                              limit / 1'000'000));
}

Result<void> ApkKernel::set_policy(const apk::SharingPolicy& policy) {
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(policy_.data(), &policy, sizeof policy,
                                      cudaMemcpyHostToDevice, copy_stream_));
  return cuda_result(cudaStreamSynchronize(copy_stream_), "policy");
}

Result<void> ApkKernel::leave(uint32_t stop_value, Nanoseconds limit) {
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(stop_.data(), &stop_value, sizeof stop_value,
                                      cudaMemcpyHostToDevice, copy_stream_));
  EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(copy_stream_));
  cudaError_t state = cudaErrorNotReady;
  const bool left = poll(
      [&] {
        state = cudaStreamQuery(kernel_stream_);
        return state != cudaErrorNotReady;
      },
      limit);
  if (!left) return make_error(ErrorCode::kDeadlineExceeded, "the kernel still runs");
  running_ = false;
  return cuda_result(state, "adaptive persistent kernel");
}

Result<void> ApkKernel::stop(Nanoseconds limit) {
  if (!running_) return {};
  if (leave(1, limit)) return {};
  if (!running_) return reported("stop");
  EXPERTPLEX_TRY(leave(2, limit));
  return reported(
      fmt::format("stop: operations were in flight after {} ms, aborted", limit / 1'000'000));
}

}  // namespace expertplex::cuda
