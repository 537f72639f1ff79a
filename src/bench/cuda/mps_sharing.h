// Sharing a GPU between two processes under NVIDIA's Multi-Process Service (MPS), as a contestant
// beside the persistent kernel: a prefill client and a decode client, each with its percentage of
// the SMs (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), launching our own GEMM kernels.
//
// The parent starts both as `expertplex bench mps-client`, with an MPS daemon of its own in a
// temporary folder; they meet on the words of a shared page. Times are those of events around each
// launch, as in launched_sharing.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/cuda/launched_sharing.h"

namespace expertplex::bench {

struct MpsTimes {
  SharedTimes one, often;  // one decode operation a prefill; one every `often_us`
  SharedRates saturated;   // both phases always busy
};

struct MpsRun {
  GemmName shape;
  uint32_t decode_rows = 0;
  uint32_t decode_percent = 0;  // of the SMs; prefill has the rest
  int prefills = 0;             // measured, of each kind of run
  double first_us = 0, often_us = 0;
};

class MpsDaemon {
 public:
  // An error says why MPS does not run here. Blocking; one at a time.
  static Result<std::unique_ptr<MpsDaemon>> start();
  ~MpsDaemon();

  // Runs both clients to their end and has checked their outputs.
  Result<MpsTimes> run(const MpsRun& run) const;

 private:
  explicit MpsDaemon(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

// What `bench mps-client` does: `page` is a descriptor of the shared page. Returns the exit status.
int run_mps_client(int page, bool prefill);

}  // namespace expertplex::bench
