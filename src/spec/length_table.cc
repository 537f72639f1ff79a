#include "spec/length_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace expertplex {
namespace {

// Azure LLM inference traces 2023, Mooncake FAST '25 conversation trace, openchat_sharegpt4 up to
// 8k tokens (as in Sarathi-Serve): quantiles measured on the published files.
constexpr QuantilePoint kAzureCodePrompt[] = {{0, 3},       {0.05, 75},   {0.25, 578},
                                              {0.5, 1469},  {0.75, 2744}, {0.9, 5188},
                                              {0.95, 7303}, {0.99, 7436}, {1, 7500}};
constexpr QuantilePoint kAzureCodeOutput[] = {{0, 1}, {0.5, 13}, {0.9, 55}, {0.99, 251}, {1, 350}};
constexpr QuantilePoint kAzureConversationPrompt[] = {{0, 2},       {0.05, 181},  {0.25, 396},
                                                      {0.5, 1020},  {0.75, 1189}, {0.9, 2734},
                                                      {0.95, 4083}, {0.99, 4142}, {1, 12000}};
constexpr QuantilePoint kAzureConversationOutput[] = {
    {0, 90}, {0.5, 129}, {0.9, 424}, {0.99, 601}, {1, 1200}};
constexpr QuantilePoint kMooncakePrompt[] = {{0, 890},      {0.05, 901},   {0.25, 2306},
                                             {0.5, 6909},   {0.75, 15367}, {0.9, 27367},
                                             {0.95, 39550}, {0.99, 85400}, {1, 126000}};
constexpr QuantilePoint kMooncakeOutput[] = {
    {0, 20}, {0.5, 350}, {0.9, 597}, {0.99, 1119}, {1, 2000}};
constexpr QuantilePoint kSharegptPrompt[] = {{0, 4},      {0.25, 580},  {0.5, 1730},  {0.75, 3734},
                                             {0.9, 5696}, {0.95, 6563}, {0.99, 7434}, {1, 8192}};
constexpr QuantilePoint kSharegptOutput[] = {
    {0, 80}, {0.5, 415}, {0.9, 834}, {0.99, 998}, {1, 1100}};
constexpr QuantilePoint kSharegptShortPrompt[] = {{0, 36}, {0.5, 297}, {0.9, 878}, {1, 1024}};
constexpr QuantilePoint kSharegptShortOutput[] = {{0, 60}, {0.5, 402}, {1, 1000}};
// LooGLE: the mean of the documents, and the limits of the answers (50, 300 and 500 tokens).
constexpr QuantilePoint kLooglePrompt[] = {{0, 12000}, {0.5, 21000}, {1, 47000}};
constexpr QuantilePoint kLoogleOutput[] = {{0, 10}, {0.5, 50}, {1, 500}};

constexpr LengthPreset kPresets[] = {
    {"azure-code", "Azure LLM inference trace 2023, code", 2048, 27.9, false, kAzureCodePrompt,
     kAzureCodeOutput},
    {"azure-conversation", "Azure LLM inference trace 2023, conversation", 1155, 211, false,
     kAzureConversationPrompt, kAzureConversationOutput},
    {"loogle", "LooGLE, published means", 24005, 0, true, kLooglePrompt, kLoogleOutput},
    {"mooncake", "Mooncake FAST '25, conversation", 12035, 343, false, kMooncakePrompt,
     kMooncakeOutput},
    {"sharegpt", "openchat_sharegpt4, up to 8k tokens", 2340, 438.7, false, kSharegptPrompt,
     kSharegptOutput},
    {"sharegpt-short", "the same, prompts up to 1,024, totals up to 2,048", 378, 419, true,
     kSharegptShortPrompt, kSharegptShortOutput},
};

// The mean of a segment whose logarithm is uniform.
double segment_mean(double low, double high) {
  return high - low < 1e-9 ? low : (high - low) / std::log(high / low);
}

}  // namespace

Result<LengthTable> LengthTable::make(std::vector<QuantilePoint> points) {
  if (points.size() < 2 || points.front().probability != 0 || points.back().probability != 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "length table: expected points from probability 0 to 1, got {} points",
                      points.size());
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const QuantilePoint& p = points[i];
    if (!(p.tokens >= 1) || !std::isfinite(p.tokens)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "length table: point {}: expected 1 token or more, got {}", i, p.tokens);
    }
    if (i == 0) continue;
    if (!(p.probability > points[i - 1].probability) || p.tokens < points[i - 1].tokens) {
      return make_error(ErrorCode::kInvalidArgument,
                        "length table: point {} ({}, {}): expected more than point {} ({}, {})", i,
                        p.probability, p.tokens, i - 1, points[i - 1].probability,
                        points[i - 1].tokens);
    }
  }
  return LengthTable(std::move(points));
}

double LengthTable::quantile(double probability) const {
  const double p = std::clamp(probability, 0.0, 1.0);
  const auto high = std::ranges::lower_bound(points_, p, {}, &QuantilePoint::probability);
  if (high == points_.begin()) return high->tokens;
  const auto low = high - 1;
  const double share = (p - low->probability) / (high->probability - low->probability);
  return low->tokens * std::pow(high->tokens / low->tokens, share);
}

double LengthTable::mean() const {
  double mean = 0;
  for (size_t i = 1; i < points_.size(); ++i) {
    mean += (points_[i].probability - points_[i - 1].probability) *
            segment_mean(points_[i - 1].tokens, points_[i].tokens);
  }
  return mean;
}

int64_t LengthTable::sample(Random& random) const {
  return std::max<int64_t>(1, std::llround(quantile(random.unit())));
}

std::span<const LengthPreset> length_presets() { return kPresets; }

Result<LengthDistribution> find_length_distribution(std::string_view name) {
  std::string known;
  for (const LengthPreset& preset : kPresets) {
    if (preset.name == name) {
      EXPERTPLEX_ASSIGN(LengthTable prompt,
                        LengthTable::make({preset.prompt.begin(), preset.prompt.end()}));
      EXPERTPLEX_ASSIGN(LengthTable output,
                        LengthTable::make({preset.output.begin(), preset.output.end()}));
      return LengthDistribution{std::string(name), std::move(prompt), std::move(output)};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", preset.name);
  }
  return make_error(ErrorCode::kInvalidArgument, "workload \"{}\": expected one of {}", name,
                    known);
}

}  // namespace expertplex
