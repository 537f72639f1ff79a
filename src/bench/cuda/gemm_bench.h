// Speed of the GEMM pipelines alone, as ordinary launches: contiguous (prefill) and masked (decode)
// on the shapes of results' targets. Every problem is checked against an exact reference in the
// same run.
#pragma once

#include <string>

#include "base/result.h"

namespace expertplex::bench {

struct GemmBenchOptions {
  int repetitions = 9;
  std::string only;  // part of a row's name; empty: all
  // Instead of measuring: what cuda/host/gemm_config_search.h expects of every legal plan, best
  // first. Needs no GPU.
  bool predict = false;
};

Result<void> run_gemm_bench(const GemmBenchOptions& options);

}  // namespace expertplex::bench
