// The GPU's MoE server: the adaptive persistent kernel behind backend/moe_executor.h. Operations
// come through the kernel's words (ApkKernel::signal, or a sender on the device), never through a
// call here.
#pragma once

#include <memory>
#include <mutex>

#include "backend/moe_executor.h"
#include "cuda/host/apk_kernel.h"

namespace expertplex::cuda {

class ApkMoeExecutor final : public MoeExecutor {
 public:
  // `setup` is what start() starts; its operands outlive the executor.
  explicit ApkMoeExecutor(ApkSetup setup) : setup_(std::move(setup)) {}

  Result<void> start() override;
  Result<void> stop(Nanoseconds limit) override;
  void abort() override;
  // Of the last start; zeros before it, and where the device cannot be read.
  MoeStatistics statistics() const override;

  // Of a started executor, until it is destroyed.
  ApkKernel& kernel() const { return *kernel_; }

 private:
  const ApkSetup setup_;
  mutable std::mutex mutex_;  // kernel_ against start()
  std::unique_ptr<ApkKernel> kernel_;
};

}  // namespace expertplex::cuda
