// What a bench command produces: rows of results/summary.json, and points for plots; printed as
// they come.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bench/summary.h"

namespace expertplex::bench {

// One point of a plot: `plot` names the plot, `series` the contestant or line that it belongs to.
struct PlotPoint {
  std::string plot, series, label;
  double x = 0, y = 0;
};

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
  void point(const std::string& plot, const std::string& series, const std::string& label, double x,
             double y) {
    points_.push_back({plot, series, label, x, y});
  }

  const std::vector<SummaryRow>& rows() const { return rows_; }
  const std::vector<PlotPoint>& points() const { return points_; }

 private:
  std::string command_;
  std::vector<SummaryRow> rows_;
  std::vector<PlotPoint> points_;
};

}  // namespace expertplex::bench
