// Sampler and choose_experts: properties against slow and obvious twins.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
#include "cpu/attention/expert_choice.h"
#include "cpu/attention/sampling.h"

namespace expertplex::cpu {
namespace {

std::vector<float> random_logits(Random& random, int count, bool ties) {
  std::vector<float> logits(count);
  for (auto& l : logits) {
    l = static_cast<float>(random.unit() * 12.0 - 6.0);
    if (ties) l = std::round(l);
  }
  return logits;
}

// The tokens that may come out, and their probabilities, by the definition.
std::vector<std::pair<int, double>> kept_tokens(const std::vector<float>& logits,
                                                const SampleSpec& spec) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (spec.top_k > 0 && spec.top_k < static_cast<int>(order.size())) order.resize(spec.top_k);
  std::vector<std::pair<int, double>> kept;
  double total = 0, sum = 0;
  for (const int id : order) {
    total += std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / spec.temperature);
  }
  for (const int id : order) {
    const double p =
        std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / spec.temperature) / total;
    kept.emplace_back(id, p);
    sum += p;
    if (spec.top_p < 1.0f && sum >= spec.top_p) break;
  }
  for (auto& [id, p] : kept) p /= spec.top_p < 1.0f ? sum : 1.0;
  return kept;
}

TEST(Sampling, GreedyTakesTheLowestOfTheLargest) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    auto logits = random_logits(random, 50, true);
    Sampler sampler(50);
    SampleSpec spec;
    const std::vector<int32_t> forbidden = {3, 17, 49};
    spec.forbidden = forbidden;
    spec.temperature = round % 2 ? 0.0f : 1.0f;
    spec.top_k = round % 2 ? 0 : 1;
    for (const int id : forbidden) logits[id] = -std::numeric_limits<float>::infinity();
    const int expected =
        static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(sampler.sample(logits, spec, round), expected);
  }
}

TEST(Sampling, ForbiddenTokensNeverComeOut) {
  Random random(2);
  Sampler sampler(20);
  std::vector<int32_t> forbidden;
  for (int id = 0; id < 20; ++id) {
    if (id != 4 && id != 11) forbidden.push_back(id);
  }
  std::set<int> seen;
  for (int position = 0; position < 200; ++position) {
    auto logits = random_logits(random, 20, false);
    SampleSpec spec{.temperature = 2.0f, .seed = 5, .forbidden = forbidden};
    seen.insert(sampler.sample(logits, spec, position));
  }
  EXPECT_EQ(seen, (std::set<int>{4, 11}));
}

TEST(Sampling, OnlyKeptTokensComeOutWithTheirProbabilities) {
  Random random(3);
  const struct {
    float temperature, top_p;
    int top_k;
  } cases[] = {{1.0f, 1.0f, 0},  {0.5f, 0.9f, 0}, {1.5f, 1.0f, 5},
               {2.0f, 0.7f, 10}, {1.0f, 0.0f, 0}, {1.0f, 0.05f, 3}};
  for (const auto& c : cases) {
    for (const bool ties : {false, true}) {
      const auto logits = random_logits(random, 40, ties);
      SampleSpec spec{.temperature = c.temperature,
                      .top_p = c.top_p,
                      .top_k = c.top_k,
                      .seed = 9,
                      .forbidden = {}};
      const auto kept = kept_tokens(logits, spec);
      std::vector<double> share(logits.size(), 0.0);
      constexpr int kDraws = 20000;
      Sampler sampler(40);
      for (int position = 0; position < kDraws; ++position) {
        auto copy = logits;
        share[sampler.sample(copy, spec, position)] += 1.0 / kDraws;
      }
      double covered = 0;
      for (const auto& [id, p] : kept) {
        EXPECT_NEAR(share[id], p, 5.0 * std::sqrt(p * (1 - p) / kDraws) + 1e-3) << "token " << id;
        covered += share[id];
      }
      EXPECT_NEAR(covered, 1.0, 1e-9) << "a token outside top-k/top-p came out";
    }
  }
}

TEST(Sampling, TheDrawDependsOnSeedAndPositionOnly) {
  Random random(4);
  const auto logits = random_logits(random, 1000, false);
  SampleSpec spec{.temperature = 3.0f, .top_p = 0.95f, .seed = 77, .forbidden = {}};
  Sampler one(1000), other(1000);
  std::vector<int32_t> first;
  for (int position = 0; position < 64; ++position) {
    auto copy = logits;
    first.push_back(one.sample(copy, spec, position));
  }
  int repeated = 0;
  for (int position = 63; position >= 0; --position) {  // another object, another order
    auto copy = logits;
    EXPECT_EQ(other.sample(copy, spec, position), first[position]);
    SampleSpec reseeded = spec;
    reseeded.seed = 78;
    copy = logits;
    repeated += other.sample(copy, reseeded, position) == first[position];
  }
  EXPECT_LT(repeated, 10);
  EXPECT_GT(std::set<int32_t>(first.begin(), first.end()).size(), 40u);
}

TEST(Sampling, UniformIsUniform) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    double sum = 0, squares = 0, neighbours = 0, before = 0.5;
    constexpr int kDraws = 50000;
    for (int i = 0; i < kDraws; ++i) {
      const double u = sampling_uniform(seed, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      sum += u;
      squares += u * u;
      neighbours += (u - 0.5) * (before - 0.5);
      before = u;
    }
    EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
    EXPECT_NEAR(squares / kDraws, 1.0 / 3.0, 0.01);
    EXPECT_NEAR(neighbours / kDraws, 0.0, 0.002);
  }
}

TEST(Sampling, LogitsThatAreNoNumbersAreReported) {
  std::vector<float> logits(30, std::numeric_limits<float>::quiet_NaN());
  Sampler sampler(30);
  EXPECT_EQ(sampler.sample(logits, SampleSpec{.temperature = 1.0f, .forbidden = {}}, 0), -1);
}

TEST(ExpertChoice, MatchesTheDefinition) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    ModelSpec spec;
    spec.expert_count = static_cast<int>(random.between(2, 64));
    spec.experts_per_token = static_cast<int>(random.between(1, std::min(spec.expert_count, 8)));
    spec.router_score = random.chance(0.5) ? RouterScore::kSigmoid : RouterScore::kSoftmax;
    spec.renormalize = random.chance(0.5);
    const auto logits = random_logits(random, spec.expert_count, random.chance(0.3));
    std::vector<float> bias = random_logits(random, spec.expert_count, random.chance(0.3));
    const bool with_bias = random.chance(0.5);
    std::vector<float> scratch(2 * spec.expert_count), weights(spec.experts_per_token);
    std::vector<int32_t> ids(spec.experts_per_token);
    choose_experts(spec, logits.data(), with_bias ? bias.data() : nullptr, scratch.data(),
                   ids.data(), weights.data());

    std::vector<double> scores(spec.expert_count);
    double sum = 0;
    for (int e = 0; e < spec.expert_count; ++e) {
      const double l = logits[e];
      scores[e] = spec.router_score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-l)) : std::exp(l);
      sum += scores[e];
    }
    if (spec.router_score == RouterScore::kSoftmax) {
      for (auto& s : scores) s /= sum;
    }
    std::vector<int> order(spec.expert_count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      // In float, as ties are decided there.
      return static_cast<float>(scores[a]) + (with_bias ? bias[a] : 0.0f) >
             static_cast<float>(scores[b]) + (with_bias ? bias[b] : 0.0f);
    });
    std::vector<int32_t> expected(order.begin(), order.begin() + spec.experts_per_token);
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(ids, expected) << "round " << round;
    double chosen = 0;
    for (const int e : expected) chosen += scores[e];
    for (size_t k = 0; k < ids.size(); ++k) {
      ASSERT_NEAR(weights[k], scores[ids[k]] / (spec.renormalize ? chosen : 1.0), 1e-5);
    }
  }
}

TEST(ExpertChoice, BrokenLogitsStillGiveDifferentExperts) {
  ModelSpec spec;
  spec.expert_count = 8;
  spec.experts_per_token = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& logits : {std::vector<float>(8, nan), std::vector<float>(8, -infinity),
                             std::vector<float>{nan, 1, nan, infinity, nan, nan, 0, nan}}) {
    std::vector<float> scratch(16), weights(3);
    std::vector<int32_t> ids(3);
    choose_experts(spec, logits.data(), nullptr, scratch.data(), ids.data(), weights.data());
    EXPECT_LT(ids[0], ids[1]);
    EXPECT_LT(ids[1], ids[2]);
    EXPECT_GE(ids[0], 0);
    EXPECT_LT(ids[2], 8);
  }
}

}  // namespace
}  // namespace expertplex::cpu
