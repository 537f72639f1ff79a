// How long prompts and answers of a workload are: a quantile table each, as measured or published.
// Between two points the quantile function is log-linear (lengths spread over decades; a straight
// line would put too much into the tail).
//
// Prompt and answer are drawn independently: the sources publish no joint distribution.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"

namespace expertplex {

struct QuantilePoint {
  double probability = 0;  // 0 .. 1
  double tokens = 0;       // at least 1
};

class LengthTable {
 public:
  // Points from probability 0 to 1, both included, rising in both. kInvalidArgument otherwise.
  static Result<LengthTable> make(std::vector<QuantilePoint> points);

  // Tokens at `probability`.
  double quantile(double probability) const;
  // Of the distribution that the table describes (not the published mean: see LengthPreset).
  double mean() const;
  // Rounded, at least 1.
  int64_t sample(Random& random) const;

 private:
  explicit LengthTable(std::vector<QuantilePoint> points) : points_(std::move(points)) {}
  std::vector<QuantilePoint> points_;
};

struct LengthDistribution {
  std::string name;
  LengthTable prompt, output;
};

// A shipped distribution, by the name that users give.
struct LengthPreset {
  std::string_view name;
  std::string_view source;
  double prompt_mean = 0, output_mean = 0;  // as published, tokens; 0: not published
  bool approximate = false;                 // only means or few quantiles are published
  std::span<const QuantilePoint> prompt, output;
};

// Ordered by name. Sources give quantiles from 5 to 99 %; the first and last point of a table are
// chosen so that its mean is the published one, which tests hold together to 3 %.
std::span<const LengthPreset> length_presets();

// A preset by name; an unknown name is an error that lists the known ones.
Result<LengthDistribution> find_length_distribution(std::string_view name);

}  // namespace expertplex
