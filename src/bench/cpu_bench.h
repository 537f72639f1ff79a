// `expertplex bench cpu`: the CPU backend serving the bundled model over HTTP, as a user meets it:
// one stream, 32 streams, time to first token, and the inter-token latency of running streams while
// a long prefill runs, with preemption on and off side by side. Every run is checked before it
// counts: the greedy text of a stream must not depend on what ran beside it.
#pragma once

#include <string>

#include "base/result.h"

namespace expertplex::bench {

struct CpuBenchOptions {
  std::string binary;        // the expertplex to start as a server
  std::string model;         // empty: the bundled one
  std::string summary_path;  // empty: rows are only printed
  std::string commit = "unknown";
  int repetitions = 5;
};

Result<void> run_cpu_bench(const CpuBenchOptions& options);

}  // namespace expertplex::bench
