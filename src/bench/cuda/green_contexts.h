// Two green contexts that split the GPU's SMs, and a stream in each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"

namespace expertplex::bench {

class GreenContexts {
 public:
  // The first context gets `sms` SMs, rounded up to what the driver can split; the other the rest.
  static Result<GreenContexts> make(uint32_t sms);
  GreenContexts() = default;
  GreenContexts(GreenContexts&& other) noexcept;
  GreenContexts& operator=(GreenContexts&& other) noexcept;
  ~GreenContexts();

  cudaStream_t stream(int which) const { return streams_[which]; }
  uint32_t sms(int which) const { return sms_[which]; }

 private:
  void* contexts_[2] = {nullptr, nullptr};  // CUgreenCtx
  cudaStream_t streams_[2] = {nullptr, nullptr};
  uint32_t sms_[2] = {0, 0};
};

}  // namespace expertplex::bench
