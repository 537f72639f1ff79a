// The adaptive persistent kernel alone and shared: decode operations isolated, back to back and in
// mid-prefill, under every policy; prefill alone and with decode beside it. Outputs are checked
// against an exact reference in the same run.
#pragma once

#include "base/result.h"

namespace expertplex::bench {

struct ApkBenchOptions {
  int repetitions = 15;
};

Result<void> run_apk_bench(const ApkBenchOptions& options);

}  // namespace expertplex::bench
