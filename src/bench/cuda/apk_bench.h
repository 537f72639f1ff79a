// The adaptive persistent kernel alone and shared, in sections (apk_sections.h).
#pragma once

#include <string>

#include "base/result.h"

namespace expertplex::bench {

struct ApkBenchOptions {
  std::string only;     // sections whose name contains this
  std::string shape;    // shapes whose name contains this
  std::string summary;  // file to which rows go; empty: none
  std::string points;   // CSV file of plot points (tools/plot_results.py); empty: none
  std::string commit = "unknown";
};

Result<void> run_apk_bench(const ApkBenchOptions& options);

}  // namespace expertplex::bench
