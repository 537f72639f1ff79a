// results/summary.json: every published number is a row {name, value, unit, target, command,
// commit, machine, date}; rows are sorted by name, and a new measurement replaces its row.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex::bench {

struct SummaryRow {
  std::string name;
  double value = 0;
  std::string unit;    // "tok/s", "ms"; empty for ratios
  std::string target;  // ">= 300", "<= 3"
  std::string command;
};

// Where the numbers were taken: "2 x Intel Xeon ... (avx512)".
std::string machine_name(const std::string& kernels);

Result<void> update_summary(const std::string& path, const std::vector<SummaryRow>& rows,
                            const std::string& commit, const std::string& machine);

}  // namespace expertplex::bench
