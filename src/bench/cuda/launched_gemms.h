// Our own GEMM kernels as ordinary launches, for the contestants of the persistent kernel, and times
// of events around them, which include a launch (about 3 us).
//
// Thread rules: one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/cuda/apk_workload.h"
#include "cuda/host/grouped_gemm.h"

namespace expertplex::bench {

class EventPair {
 public:
  EventPair() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~EventPair() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  Result<void> around(cudaStream_t stream, const std::function<Result<void>()>& launch) {
    EXPERTPLEX_CUDA_TRY(cudaEventRecord(begin_, stream));
    EXPERTPLEX_TRY(launch());
    return cuda::cuda_result(cudaEventRecord(end_, stream), "cudaEventRecord");
  }
  bool done() const { return cudaEventQuery(end_) == cudaSuccess; }
  Result<void> wait() const {
    return cuda::cuda_result(cudaEventSynchronize(end_), "cudaEventSynchronize");
  }
  // REQUIRES: it is over.
  Result<double> microseconds() const {
    float milliseconds = 0;
    EXPERTPLEX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// One model's GEMM of both phases, or of one: a prefill operation, and decode operations over
// weights that are used in turn.
class LaunchedGemms {
 public:
  struct Phases {
    bool prefill = true, decode = true;
  };
  static Result<LaunchedGemms> make(const GemmName& shape, uint32_t decode_rows, Phases phases);

  Result<void> launch_prefill(uint32_t ctas, cudaStream_t stream) const;
  Result<void> launch_decode(uint32_t ctas, cudaStream_t stream);
  uint32_t prefill_tiles() const { return prefill_[0].tiles(); }
  // Compares what was written with an exact reference.
  Result<void> check(const std::string& name) const;

 private:
  Result<void> add(const GemmName& shape, apk::Phase phase, apk::PipelineRole pipeline,
                   uint32_t rows, uint32_t seed);

  std::vector<cuda::GemmProblem> problems_;
  std::vector<cuda::GemmOperation> prefill_, decode_;
  size_t next_decode_ = 0;
};

}  // namespace expertplex::bench
