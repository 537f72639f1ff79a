// Writes families of samples in Prometheus' text format. Private to src/api.
//
// Thread rules: one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/engine.h"

namespace expertplex {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

class PrometheusWriter {
 public:
  // `common` labels stand before those of each sample.
  PrometheusWriter(std::string prefix, Labels common);

  // Starts a family: HELP and TYPE. `type`: "counter", "gauge", "histogram".
  void family(std::string_view name, std::string_view type, std::string_view help);
  // Samples of the family that was started last.
  void sample(double value, const Labels& labels = {});
  void histogram(const Histogram& histogram, const Labels& labels = {});

  // A family with one sample.
  void counter(std::string_view name, double value, std::string_view help);
  void gauge(std::string_view name, double value, std::string_view help);
  void histogram(std::string_view name, const Histogram& values, std::string_view help);

  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, const Labels& labels, std::string_view le, double value);

  std::string prefix_;
  Labels common_;
  std::string name_;
  std::string text_;
};

}  // namespace expertplex
