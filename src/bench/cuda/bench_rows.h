// The rows of results/summary.json that a bench command produces, printed as they come.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bench/summary.h"

namespace expertplex::bench {

class BenchRows {
 public:
  explicit BenchRows(std::string command) : command_(std::move(command)) {}

  void add(const std::string& name, double value, const std::string& unit,
           const std::string& target = "") {
    rows_.push_back({name, value, unit, target, command_});
    fmt::print("{:60} {:10.2f} {}{}\n", name, value, unit,
               target.empty() ? "" : "   (target " + target + ")");
    std::fflush(stdout);
  }
  const std::vector<SummaryRow>& rows() const { return rows_; }

 private:
  std::string command_;
  std::vector<SummaryRow> rows_;
};

}  // namespace expertplex::bench
