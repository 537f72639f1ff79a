// Lengths, arrivals and traces of workloads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "spec/arrivals.h"
#include "spec/length_table.h"
#include "spec/trace.h"

namespace expertplex {
namespace {

TEST(LengthTable, IsLogLinearBetweenItsPoints) {
  const auto table = LengthTable::make({{0, 10}, {0.5, 1000}, {1, 1000}});
  ASSERT_TRUE(table);
  EXPECT_DOUBLE_EQ(table.value().quantile(0), 10);
  EXPECT_NEAR(table.value().quantile(0.25), 100, 1e-9);
  EXPECT_DOUBLE_EQ(table.value().quantile(0.7), 1000);
  EXPECT_DOUBLE_EQ(table.value().quantile(2), 1000);
  // Half of it constant, half with the mean of a log-uniform distribution.
  EXPECT_NEAR(table.value().mean(), 500 + 0.5 * 990 / std::log(100.0), 1e-9);
}

TEST(LengthTable, RefusesWhatIsNoDistribution) {
  const auto message = [](std::vector<QuantilePoint> points) {
    const auto table = LengthTable::make(std::move(points));
    return table ? std::string() : table.error().message;
  };
  EXPECT_EQ(message({{0, 1}}),
            "length table: expected points from probability 0 to 1, got 1 points");
  EXPECT_EQ(message({{0, 1}, {0.9, 2}}),
            "length table: expected points from probability 0 to 1, got 2 points");
  EXPECT_EQ(message({{0, 0}, {1, 2}}), "length table: point 0: expected 1 token or more, got 0");
  EXPECT_EQ(message({{0, 3}, {1, 2}}),
            "length table: point 1 (1, 2): expected more than point 0 (0, 3)");
  EXPECT_EQ(message({{0, 1}, {0.5, 2}, {0.5, 3}, {1, 4}}),
            "length table: point 2 (0.5, 3): expected more than point 1 (0.5, 2)");
  EXPECT_NE(message({{0, 1}, {1, std::nan("")}}), "");
}

TEST(LengthPresets, HaveTheirPublishedMeansAndAreSorted) {
  std::string_view last;
  for (const LengthPreset& preset : length_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_LT(last, preset.name);
    last = preset.name;
    const auto lengths = find_length_distribution(preset.name);
    ASSERT_TRUE(lengths) << lengths.error().message;
    EXPECT_NEAR(lengths.value().prompt.mean(), preset.prompt_mean, 0.03 * preset.prompt_mean);
    if (preset.output_mean == 0) continue;
    EXPECT_NEAR(lengths.value().output.mean(), preset.output_mean, 0.031 * preset.output_mean);
  }
}

TEST(LengthPresets, SamplesFollowTheTable) {
  const auto lengths = find_length_distribution("sharegpt");
  ASSERT_TRUE(lengths);
  Random random(7);
  double sum = 0;
  int below_median = 0;
  constexpr int kSamples = 20000;
  for (int i = 0; i < kSamples; ++i) {
    const int64_t tokens = lengths.value().prompt.sample(random);
    ASSERT_GE(tokens, 1);
    ASSERT_LE(tokens, 8192);
    sum += static_cast<double>(tokens);
    below_median += tokens <= 1730 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kSamples, lengths.value().prompt.mean(), 50);
  EXPECT_NEAR(static_cast<double>(below_median) / kSamples, 0.5, 0.02);
}

TEST(LengthPresets, AnUnknownNameListsTheKnownOnes) {
  const auto lengths = find_length_distribution("sharegpt-long");
  ASSERT_FALSE(lengths);
  EXPECT_EQ(lengths.error().message,
            "workload \"sharegpt-long\": expected one of azure-code, azure-conversation, loogle, "
            "mooncake, sharegpt, sharegpt-short");
}

TEST(Arrivals, HaveTheRateAndVariationAskedFor) {
  for (const double cv : {0.5, 1.0, 3.0}) {
    SCOPED_TRACE(cv);
    const auto arrivals = Arrivals::make(4, cv);
    ASSERT_TRUE(arrivals);
    Random random(11);
    double sum = 0, squares = 0;
    constexpr int kGaps = 200'000;
    for (int i = 0; i < kGaps; ++i) {
      const double gap = arrivals.value().next_gap(random);
      ASSERT_GE(gap, 0);
      sum += gap;
      squares += gap * gap;
    }
    const double mean = sum / kGaps;
    EXPECT_NEAR(mean, 0.25, 0.25 * 0.02 * std::max(1.0, cv));
    EXPECT_NEAR(std::sqrt(squares / kGaps - mean * mean) / mean, cv, 0.05 * cv);
  }
}

TEST(Arrivals, RefusesRatesThatAreNone) {
  for (const double bad : {0.0, -1.0, std::nan(""), double{INFINITY}}) {
    EXPECT_FALSE(Arrivals::make(bad));
    EXPECT_FALSE(Arrivals::make(1, bad));
  }
}

Trace parse(std::string_view text, const TokenCounter& counter = {}) {
  auto trace = parse_trace(text, "file", counter);
  EXPECT_TRUE(trace) << trace.error().message;
  return trace ? std::move(trace).value() : Trace{};
}
std::string error_of(std::string_view text) {
  const auto trace = parse_trace(text, "file");
  return trace ? std::string() : trace.error().message;
}

TEST(Trace, ReadsAzure) {
  const Trace trace = parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
      "2023-11-16 18:15:50.9951690,396,109\r\n2023-11-17 00:00:00.5+00:00,1,1\n");
  EXPECT_EQ(trace.format, "Azure CSV");
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].arrival_s, 0);
  EXPECT_NEAR(trace.requests[1].arrival_s, 4.314579, 1e-6);
  EXPECT_NEAR(trace.requests[2].arrival_s, 5 * 3600 + 44 * 60 + 13.81941, 1e-5);
  EXPECT_EQ(trace.requests[1].prompt, 396);
  EXPECT_EQ(trace.requests[1].output, 109);
  EXPECT_EQ(trace.broken, 0u);
}

TEST(Trace, ReadsBurstGptWithAndWithoutSessions) {
  const Trace plain = parse(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n");
  EXPECT_EQ(plain.format, "BurstGPT CSV");
  ASSERT_EQ(plain.requests.size(), 2u);
  EXPECT_EQ(plain.requests[1].arrival_s, 40);
  EXPECT_EQ(plain.requests[1].prompt, 1087);
  const Trace sessions = parse(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n"
      "5.5,3,1.2,GPT-4,10,20,30,API log\n");
  EXPECT_EQ(sessions.requests[0].output, 20);
}

TEST(Trace, ReadsMooncakeByTime) {
  const Trace trace = parse(
      R"({"timestamp": 3052, "input_length": 2, "output_length": 26, "hash_ids": [0]})"
      "\n"
      R"({"timestamp": 52, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]})");
  EXPECT_EQ(trace.format, "Mooncake JSONL");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].prompt, 6955);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 3);
}

TEST(Trace, ReadsShareGptWithACounter) {
  const TokenCounter words = [](std::string_view text) {
    return static_cast<int64_t>(std::ranges::count(text, ' ')) + 1;
  };
  const Trace trace = parse(
      R"([{"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d"}]},
          {"conversations": []}, 3])",
      words);
  EXPECT_FALSE(trace.has_times);
  ASSERT_EQ(trace.requests.size(), 1u);
  EXPECT_EQ(trace.requests[0].prompt, 3);
  EXPECT_EQ(trace.broken, 2u);
  EXPECT_EQ(trace.first_broken, "entry 2: conversations: expected an array of two turns or more");
  EXPECT_EQ(error_of("[]"),
            "file: a ShareGPT file has texts, not lengths: name a model, whose tokenizer counts");
}

TEST(Trace, CountsBrokenLinesAndShowsTheFirst) {
  const Trace trace = parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n\nyesterday,1,2\n"
      "2023-11-16 18:15:47,x,44\n2023-11-16 18:15:47,0,44\n2023-11-16 18:15:47\n"
      "2023-13-16 18:15:47,1,1\n");
  EXPECT_EQ(trace.requests.size(), 1u);
  EXPECT_EQ(trace.broken, 5u);
  EXPECT_EQ(trace.first_broken,
            "line 4: TIMESTAMP: expected a time as 2023-11-16 18:15:46.6805900, got \"yesterday\"");
}

TEST(Trace, SaysWhyAFileIsNoTrace) {
  EXPECT_EQ(
      error_of(""),
      "file: expected a trace (Azure CSV, BurstGPT CSV, Mooncake JSONL or ShareGPT JSON), got a "
      "file that begins with \"\"");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens\n"),
            "file: line 1: expected a column \"GeneratedTokens\"");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n"),
            "file: no request can be read; it has no lines");
  EXPECT_NE(error_of("{\"timestamp\": 1\n").find("file: no request can be read; line 1: "),
            std::string::npos);
  EXPECT_FALSE(read_trace("/nowhere/trace.csv"));
}

}  // namespace
}  // namespace expertplex
