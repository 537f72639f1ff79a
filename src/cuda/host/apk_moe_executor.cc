#include "cuda/host/apk_moe_executor.h"

namespace expertplex::cuda {

Result<void> ApkMoeExecutor::start() {
  EXPERTPLEX_ASSIGN(std::unique_ptr<ApkKernel> kernel, ApkKernel::start(setup_));
  const std::lock_guard lock(mutex_);
  kernel_ = std::move(kernel);
  return {};
}

Result<void> ApkMoeExecutor::stop(Nanoseconds limit) {
  if (kernel_ == nullptr) return {};
  return kernel_->stop(limit);
}

void ApkMoeExecutor::abort() {
  const std::lock_guard lock(mutex_);
  // A device that refuses the copy has lost the kernel too; stop() says so.
  if (kernel_ != nullptr) static_cast<void>(kernel_->request_abort());
}

MoeStatistics ApkMoeExecutor::statistics() const {
  MoeStatistics statistics;
  const std::lock_guard lock(mutex_);
  if (kernel_ == nullptr) return statistics;
  const auto counters = kernel_->read_counters();
  if (!counters) return statistics;
  const apk::SchedulerCounters& c = counters.value();
  constexpr uint32_t kPrefill = apk::phase_index(apk::Phase::kPrefill);
  constexpr uint32_t kDecode = apk::phase_index(apk::Phase::kDecode);
  statistics.prefill_operations = c.submitted[kPrefill] - c.queue_depth[kPrefill];
  statistics.decode_operations = c.submitted[kDecode] - c.queue_depth[kDecode];
  statistics.prefill_tiles = c.phase_tiles(apk::Phase::kPrefill);
  statistics.decode_tiles = c.phase_tiles(apk::Phase::kDecode);
  statistics.preemptions = c.preemptions;
  statistics.open_operations = c.queue_depth[kPrefill] + c.queue_depth[kDecode];
  statistics.waits_timed_out = kernel_->timed_out() ? 1 : 0;
  // Decode slots hold the same layers, so all their operations have the same columns.
  for (const ApkSlotSetup& slot : setup_.slots) {
    if (slot.shape.phase != apk::Phase::kDecode || statistics.decode_operations == 0) continue;
    const double row_blocks = static_cast<double>(statistics.decode_tiles) /
                              (slot.shape.intermediate / slot.shape.gate_up.columns);
    statistics.x_moe_decode_mean = row_blocks / static_cast<double>(statistics.decode_operations);
    break;
  }
  return statistics;
}

}  // namespace expertplex::cuda
