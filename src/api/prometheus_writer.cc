#include "api/prometheus_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace expertplex {
namespace {

std::string escape_label(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::fabs(value) < 9e15) {
    return fmt::format("{}", static_cast<int64_t>(value));
  }
  return fmt::format("{}", value);
}

// Bounds always have a point, as Prometheus itself writes them.
std::string bound(double value) {
  std::string text = number(value);
  if (text.find_first_of(".eI") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

PrometheusWriter::PrometheusWriter(std::string prefix, Labels common)
    : prefix_(std::move(prefix)), common_(std::move(common)) {}

void PrometheusWriter::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = prefix_ + std::string(name);
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name_, help, name_,
                 type);
}

void PrometheusWriter::line(std::string_view suffix, const Labels& labels, std::string_view le,
                            double value) {
  text_ += name_;
  text_ += suffix;
  std::string list;
  const Labels* groups[] = {&common_, &labels};
  for (const Labels* group : groups) {
    for (const auto& [name, label] : *group) {
      fmt::format_to(std::back_inserter(list), "{}{}=\"{}\"", list.empty() ? "" : ",", name,
                     escape_label(label));
    }
  }
  if (!le.empty()) {
    fmt::format_to(std::back_inserter(list), "{}le=\"{}\"", list.empty() ? "" : ",", le);
  }
  if (!list.empty()) fmt::format_to(std::back_inserter(text_), "{{{}}}", list);
  fmt::format_to(std::back_inserter(text_), " {}\n", number(value));
}

void PrometheusWriter::sample(double value, const Labels& labels) { line("", labels, "", value); }

void PrometheusWriter::histogram(const Histogram& histogram, const Labels& labels) {
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    if (i < histogram.counts.size()) cumulative += histogram.counts[i];
    line("_bucket", labels, bound(histogram.bounds[i]), static_cast<double>(cumulative));
  }
  line("_bucket", labels, "+Inf", static_cast<double>(histogram.count));
  line("_sum", labels, "", histogram.sum);
  line("_count", labels, "", static_cast<double>(histogram.count));
}

void PrometheusWriter::counter(std::string_view name, double value, std::string_view help) {
  family(name, "counter", help);
  sample(value);
}

void PrometheusWriter::gauge(std::string_view name, double value, std::string_view help) {
  family(name, "gauge", help);
  sample(value);
}

void PrometheusWriter::histogram(std::string_view name, const Histogram& values,
                                 std::string_view help) {
  family(name, "histogram", help);
  histogram(values);
}

}  // namespace expertplex
