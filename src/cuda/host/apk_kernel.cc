#include "cuda/host/apk_kernel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "apk/host_memory.h"
#include "apk/operation_slot.h"
#include "cuda/host/gemm_operands.h"

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

// Host memory laid out as the scheduler's storage.
class AlignedStorage {
 public:
  explicit AlignedStorage(const apk::SchedulerLimits& limits)
      : size_(apk::storage_bytes(limits)), bytes_(size_ + apk::kStorageAlignment) {
    void* aligned = bytes_.data();
    size_t space = bytes_.size();
    data_ = static_cast<uint8_t*>(std::align(apk::kStorageAlignment, size_, aligned, space));
  }
  uint8_t* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::vector<uint8_t> bytes_;
  uint8_t* data_;
};

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
  EXPERTPLEX_CHECK(slot_count <= kApkMaxSlots, "{} slots", slot_count);
  for (const ApkSlotSetup& slot : setup.slots) {
    p.layers = std::max<uint32_t>(p.layers, static_cast<uint32_t>(slot.layers.size()));
  }

  AlignedStorage storage(p.limits);
  apk::initialise_storage(p.limits, storage.data());
  std::vector<GemmBinding> bindings(size_t{slot_count} * p.layers);
  for (const ApkSlotSetup& slot : setup.slots) {
    apk::OperationTemplate shape = slot.shape;
    const GemmTiling tiling = gemm_tiling(shape.phase, shape.pipeline);
    EXPERTPLEX_CHECK(shape.gate_up.rows == tiling.rows && shape.gate_up.columns == tiling.columns,
                     "tiles of {} x {}, the pipeline's are {} x {}", shape.gate_up.rows,
                     shape.gate_up.columns, tiling.rows, tiling.columns);
    shape.announced =
        shape.phase == apk::Phase::kDecode && shape.hidden == 0 && shape.slot < kApkInboxSlots;
    shape.commits_per_tile = 1;
    const apk::OperationFault fault = apk::install_template(p.limits, storage.data(), shape);
    if (fault != apk::OperationFault::kNone) {
      return make_error(ErrorCode::kInvalidArgument, "operation template ({} slot {}): {}",
                        apk::phase_name(shape.phase), shape.slot, apk::operation_fault_name(fault));
    }
    const uint32_t index = apk_slot_index(p.limits, shape.phase, shape.slot);
    std::copy(slot.layers.begin(), slot.layers.end(), bindings.begin() + size_t{index} * p.layers);
  }
  EXPERTPLEX_TRY(kernel->allocate(setup, {storage.data(), storage.size()}, bindings));
  EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&kernel->kernel_stream_, cudaStreamNonBlocking));
  EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&kernel->copy_stream_, cudaStreamNonBlocking));
  EXPERTPLEX_CUDA_TRY(prepare_apk_kernels());
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  EXPERTPLEX_CUDA_TRY(launch_apk(p, kernel->kernel_stream_));
  kernel->running_ = true;
  return kernel;
}

// Everything that the kernel works on, and its addresses in parameters_.
Result<void> ApkKernel::allocate(const ApkSetup& setup, std::span<const uint8_t> storage,
                                 std::span<const GemmBinding> bindings) {
  ApkParameters& p = parameters_;
  const uint32_t slot_count = p.limits.slots[0] + p.limits.slots[1];
  EXPERTPLEX_ASSIGN(staging_, MappedArray<ApkSlot>::allocate(slot_count));
  for (const ApkReady& operation : setup.ready) stage(operation);
  EXPERTPLEX_ASSIGN(slots_, DeviceBuffer<ApkSlot>::copy_of({staging_.data(), slot_count}));
  EXPERTPLEX_ASSIGN(storage_, DeviceBuffer<uint8_t>::copy_of(storage));
  EXPERTPLEX_ASSIGN(bindings_, DeviceBuffer<GemmBinding>::copy_of(bindings));
  EXPERTPLEX_ASSIGN(policy_, DeviceBuffer<apk::SharingPolicy>::copy_of({&setup.policy, 1}));
  EXPERTPLEX_ASSIGN(done_, MappedArray<ApkWord>::allocate(slot_count));
  EXPERTPLEX_ASSIGN(device_done_, DeviceBuffer<ApkWord>::copy_of(std::vector<ApkWord>(slot_count)));
  const uint32_t stop = setup.one_shot ? 1 : 0, none = 0;
  EXPERTPLEX_ASSIGN(stop_, DeviceBuffer<uint32_t>::copy_of({&stop, 1}));
  EXPERTPLEX_ASSIGN(report_, MappedArray<ApkReport>::allocate(1));
  EXPERTPLEX_ASSIGN(left_count_, DeviceBuffer<uint32_t>::copy_of({&none, 1}));
  EXPERTPLEX_ASSIGN(parking_,
                    DeviceBuffer<float4>::allocate(size_t{setup.ctas} * kApkParkedVectors));
  p.scheduler = storage_.data();
  p.bindings = bindings_.data();
  p.slots = slots_.data();
  p.done = setup.done_words_on_device ? device_done_.data() : done_.data();
  p.policy = policy_.data();
  p.stop_word = stop_.data();
  p.report = report_.data();
  p.left_count = left_count_.data();
  p.parking = parking_.data();
  p.operation_limit_ns = static_cast<uint64_t>(setup.operation_limit);
  if (setup.trace_capacity > 0) {
    EXPERTPLEX_ASSIGN(trace_, DeviceBuffer<ApkTraceEvent>::copy_of(std::vector<ApkTraceEvent>(
                                  size_t{setup.ctas} * kApkTraceKinds * setup.trace_capacity)));
    p.trace = trace_.data();
    p.trace_capacity = setup.trace_capacity;
  }
  return {};
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

void ApkKernel::stage(const ApkReady& operation) {
  EXPERTPLEX_CHECK(operation.rows_per_expert.size() <= kApkMaxExperts, "{}",
                   operation.rows_per_expert.size());
  ApkSlot& staged = staging_[apk_slot_index(parameters_.limits, operation.phase, operation.slot)];
  for (size_t e = 0; e < operation.rows_per_expert.size(); ++e) {
    staged.rows_per_expert[e] =
        apk::pack_epoch_value(operation.epoch, operation.rows_per_expert[e]);
  }
  staged.ready = apk::pack_epoch_value(operation.epoch, operation.layer + 1);
}

Result<void> ApkKernel::signal(apk::Phase phase, uint32_t slot, uint32_t epoch, uint32_t layer,
                               std::span<const uint32_t> rows_per_expert) {
  stage({phase, slot, epoch, layer, {rows_per_expert.begin(), rows_per_expert.end()}});
  const ApkSlot& staged = staging_[apk_slot_index(parameters_.limits, phase, slot)];
  ApkSlot* box = mailbox(phase, slot);
  // Two copies of one stream: counts and request lie there before the ready word.
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(box->rows_per_expert, staged.rows_per_expert,
                                      sizeof(ApkSlot) - offsetof(ApkSlot, rows_per_expert),
                                      cudaMemcpyHostToDevice, copy_stream_));
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(&box->ready, &staged.ready, sizeof(uint64_t),
                                      cudaMemcpyHostToDevice, copy_stream_));
  return cuda_result(cudaStreamSynchronize(copy_stream_), "signal");
}

namespace {

const char* role_name(uint32_t warp) {
  constexpr const char* kFirst[] = {"main producer", "resident producer", "scheduler", "committer"};
  if (warp < 4) return kFirst[warp];
  return warp < 12 ? "main math" : "resident math";
}

// "CTA 5 main math warp 4: shared+231248 parity 1", at most three of them.
std::string waiting_roles(const ApkReport& report) {
  std::string text;
  const uint32_t count = std::min(report.left_count, kApkMostLeft);
  for (uint32_t i = 0; i < std::min(count, 3u); ++i) {
    const ApkLeftWaiting& left = report.left[i];
    text +=
        fmt::format("; CTA {} {} (warp {}) waited for {} parity {}", left.cta, role_name(left.warp),
                    left.warp, apk_barrier_name(left.barrier), left.parity);
  }
  if (count > 3) text += fmt::format("; and {} more", count - 3);
  return text;
}

}  // namespace

Error ApkKernel::reported(const std::string& what) const {
  const ApkReport& report = report_[0];
  const std::string where = fmt::format("{}: {} slot {} epoch {}", what,
                                        apk::phase_name(report.phase), report.slot, report.epoch);
  switch (report.fault) {
    case ApkFault::kNone:
      return make_error(ErrorCode::kDeadlineExceeded, "{}: the kernel reports nothing", what);
    case ApkFault::kBadRequest:
      return make_error(ErrorCode::kInvalidArgument, "{}: {}", where,
                        apk::operation_fault_name(static_cast<apk::OperationFault>(report.detail)));
    case ApkFault::kTimeout:
      break;
  }
  return make_error(ErrorCode::kDeadlineExceeded,
                    "{}: not done in {} ms: {} of {} tiles committed{}", where,
                    parameters_.operation_limit_ns / 1'000'000, report.detail, report.expected,
                    waiting_roles(report));
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

Result<void> ApkKernel::wait_left(Nanoseconds limit) {
  cudaError_t state = cudaErrorNotReady;
  const bool left = poll(
      [&] {
        state = cudaStreamQuery(kernel_stream_);
        return state != cudaErrorNotReady;
      },
      limit);
  if (!left) return make_error(ErrorCode::kDeadlineExceeded, "the kernel still runs");
  running_ = false;
  EXPERTPLEX_TRY(cuda_result(state, "adaptive persistent kernel"));
  if (left_count_.size() > 0) {
    EXPERTPLEX_CUDA_TRY(cudaMemcpy(&report_[0].left_count, left_count_.data(), sizeof(uint32_t),
                                   cudaMemcpyDeviceToHost));
  }
  if (report_[0].fault != ApkFault::kNone) return reported("adaptive persistent kernel");
  return {};
}

Result<void> ApkKernel::write_stop_word(uint32_t value) {
  EXPERTPLEX_CUDA_TRY(
      cudaMemcpyAsync(stop_.data(), &value, sizeof value, cudaMemcpyHostToDevice, copy_stream_));
  return cuda_result(cudaStreamSynchronize(copy_stream_), "stop word");
}

Result<void> ApkKernel::leave(uint32_t stop_value, Nanoseconds limit) {
  EXPERTPLEX_TRY(write_stop_word(stop_value));
  return wait_left(limit);
}

Result<void> ApkKernel::request_abort() { return write_stop_word(2); }

Result<apk::SchedulerCounters> ApkKernel::read_counters() const {
  const apk::SchedulerLimits& limits = parameters_.limits;
  AlignedStorage copy(limits);
  EXPERTPLEX_CUDA_TRY(cudaMemcpyAsync(copy.data(), storage_.data(), copy.size(),
                                      cudaMemcpyDeviceToHost, copy_stream_));
  EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(copy_stream_));
  return apk::read_counters(apk::TileScheduler<apk::HostMemory>(limits, copy.data()));
}

Result<std::vector<ApkTraceEvent>> ApkKernel::read_trace(uint32_t cta, ApkTraceKind kind) const {
  const uint32_t capacity = parameters_.trace_capacity;
  std::vector<ApkTraceEvent> events(capacity);
  const size_t first = (size_t{cta} * kApkTraceKinds + static_cast<uint32_t>(kind)) * capacity;
  EXPERTPLEX_CUDA_TRY(cudaMemcpy(events.data(), trace_.data() + first,
                                 capacity * sizeof(ApkTraceEvent), cudaMemcpyDeviceToHost));
  size_t count = 0;
  while (count < capacity && events[count].time_ns != 0) ++count;
  events.resize(count);
  return events;
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
