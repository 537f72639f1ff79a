// The adaptive persistent kernel as its host sees it: templates before it starts, then words.
//
// Thread rules: start, stop and destruction from one thread; signal and wait_done from any, each
// slot by one at a time. While it runs, allocate, free and load nothing on its device; copies and
// small kernels on other non-blocking streams are fine.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apk/counters.h"
#include "apk/operation.h"
#include "apk/policy.h"
#include "base/clock.h"
#include "base/result.h"
#include "cuda/host/device_buffer.h"
#include "cuda/kernels/apk_launch.h"

namespace expertplex::cuda {

// Host memory that the device reads and writes at the same address.
template <typename T>
class MappedArray {
 public:
  static Result<MappedArray> allocate(size_t count) {
    MappedArray array;
    void* data = nullptr;
    EXPERTPLEX_CUDA_TRY(cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocMapped));
    array.data_.reset(new (data) T[count]());
    return array;
  }
  T* data() const { return data_.get(); }
  T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* data) const { cudaFreeHost(data); }
  };
  std::unique_ptr<T[], Free> data_;
};

// One operation slot: its template, and a binding for each layer.
struct ApkSlotSetup {
  apk::OperationTemplate shape;
  std::vector<GemmBinding> layers;
};

// An operation that is ready when the kernel starts.
struct ApkReady {
  apk::Phase phase = apk::Phase::kPrefill;
  uint32_t slot = 0;
  uint32_t epoch = 1;
  uint32_t layer = 0;
  std::vector<uint32_t> rows_per_expert;
};

struct ApkSetup {
  // Slot numbers per phase are shape.slot, dense from 0; at most kApkMaxSlots. Where a template
  // says how tiles are announced and committed, start() decides.
  std::vector<ApkSlotSetup> slots;
  apk::SharingPolicy policy;
  uint32_t ctas = 0;
  std::vector<ApkReady> ready;
  // One-shot: the kernel runs what is ready and leaves (for profilers and the sanitizer).
  bool one_shot = false;
  // An operation that takes longer is reported, and the kernel leaves.
  Nanoseconds operation_limit = 2 * kSecond;
  // Events kept per (CTA, kind) for read_trace(); 0: none.
  uint32_t trace_capacity = 0;
  // Done words in device memory, for senders on the device; wait_done() is for words in host
  // memory.
  bool done_words_on_device = false;
};

class ApkKernel {
 public:
  static Result<std::unique_ptr<ApkKernel>> start(const ApkSetup& setup);
  ~ApkKernel();  // aborts if it still runs
  ApkKernel(const ApkKernel&) = delete;
  ApkKernel& operator=(const ApkKernel&) = delete;

  // Makes an operation ready. The rows are in place (on `stream` before this, or already).
  // Epochs of a slot are 1, 2, ...; the slot's last operation is done.
  Result<void> signal(apk::Phase phase, uint32_t slot, uint32_t epoch, uint32_t layer,
                      std::span<const uint32_t> rows_per_expert);
  // Waits for the operation's done word, or says what the kernel reports.
  Result<void> wait_done(apk::Phase phase, uint32_t slot, uint32_t epoch, Nanoseconds limit) const;

  // Changes how phases share from the agent's next decision on.
  Result<void> set_policy(const apk::SharingPolicy& policy);

  // Runs what is in flight to its end and leaves; after `limit` aborts and says so.
  Result<void> stop(Nanoseconds limit);

  // Tells the kernel to leave work behind, and does not wait. From any thread.
  Result<void> request_abort();
  // The kernel has reported an operation that took too long.
  bool timed_out() const { return report_[0].fault == ApkFault::kTimeout; }
  // From any thread, while it runs or afterwards.
  Result<apk::SchedulerCounters> read_counters() const;

  // Waits for a one-shot kernel to leave, or one that reports a fault.
  Result<void> wait_left(Nanoseconds limit);

  // What a CTA's trace holds of one kind, in order, as far as the capacity went. After stop().
  Result<std::vector<ApkTraceEvent>> read_trace(uint32_t cta, ApkTraceKind kind) const;

  // For senders on the device.
  ApkSlot* mailbox(apk::Phase phase, uint32_t slot) const;
  const ApkWord* done_word(apk::Phase phase, uint32_t slot) const;
  const ApkParameters& parameters() const { return parameters_; }

 private:
  ApkKernel() = default;
  Result<void> allocate(const ApkSetup& setup, std::span<const uint8_t> storage,
                        std::span<const GemmBinding> bindings);
  void stage(const ApkReady& operation);
  Result<void> write_stop_word(uint32_t value);
  Result<void> leave(uint32_t stop_value, Nanoseconds limit);
  Error reported(const std::string& what) const;

  ApkParameters parameters_;
  DeviceBuffer<uint8_t> storage_;
  DeviceBuffer<GemmBinding> bindings_;
  DeviceBuffer<ApkSlot> slots_;
  DeviceBuffer<apk::SharingPolicy> policy_;
  MappedArray<ApkWord> done_;
  DeviceBuffer<ApkWord> device_done_;
  DeviceBuffer<uint32_t> stop_;
  MappedArray<ApkReport> report_;
  DeviceBuffer<uint32_t> left_count_;
  DeviceBuffer<float4> parking_;
  DeviceBuffer<ApkTraceEvent> trace_;
  MappedArray<ApkSlot> staging_;
  cudaStream_t kernel_stream_ = nullptr, copy_stream_ = nullptr;
  bool running_ = false;
};

}  // namespace expertplex::cuda
