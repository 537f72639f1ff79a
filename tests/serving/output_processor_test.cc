// OutputProcessor and StopMatcher against slow obvious twins.
#include "serving/output_processor.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "base/random.h"

namespace expertplex {
namespace {

// Token i is the i-th string.
class TableStream : public TextStream {
 public:
  explicit TableStream(std::vector<std::string> table) : table_(std::move(table)) {}
  std::string push(int32_t token) override { return table_.at(static_cast<size_t>(token)); }
  std::string finish() override { return {}; }

 private:
  std::vector<std::string> table_;
};

struct Twin {
  std::string text;
  bool stopped = false;
};

// Reads the text byte by byte: at the first byte where some stop string ends, the longest such
// wins.
Twin slow_stop(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::string> best;
    for (const auto& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          (!best || stop.size() > best->size())) {
        best = stop;
      }
    }
    if (best) return {text.substr(0, include ? end : end - best->size()), true};
  }
  return {text, false};
}

std::string random_text(Random& random, int max_length) {
  std::string text;
  for (int64_t i = random.between(1, max_length); i > 0; --i) text += "abc"[random.below(3)];
  return text;
}

TEST(StopMatcher, EqualsTheSlowTwinWhateverTheChunks) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    std::vector<std::string> stops;
    for (uint64_t i = random.below(4); i > 0; --i) stops.push_back(random_text(random, 5));
    const bool include = random.chance(0.5);
    StopMatcher matcher(stops, include);
    std::string in, out;
    for (int chunk = 0; chunk < 12 && !matcher.stopped(); ++chunk) {
      const std::string text = random.chance(0.2) ? "" : random_text(random, 4);
      in += text;
      out += matcher.push(text);
      // Whatever is out is right already, and no more is held than may become a stop string.
      const Twin twin = slow_stop(in, stops, include);
      ASSERT_EQ(twin.text.compare(0, out.size(), out), 0) << "seed " << seed;
      ASSERT_EQ(matcher.stopped(), twin.stopped) << "seed " << seed;
      if (!twin.stopped) {
        const std::string held = in.substr(out.size());
        bool open = held.empty();
        for (const auto& stop : stops) open |= held.size() < stop.size() && stop.starts_with(held);
        ASSERT_TRUE(open) << "seed " << seed << " holds '" << held << "'";
      }
    }
    out += matcher.flush();
    ASSERT_EQ(out, slow_stop(in, stops, include).text) << "seed " << seed;
  }
}

struct Case {
  SamplingParams sampling;
  int max_tokens = 100;
  std::vector<int32_t> eos = {0};
};

// Pushes tokens until the end; returns text and reason.
std::pair<std::string, FinishReason> run(const Case& c, const std::vector<int32_t>& tokens,
                                         int* used = nullptr) {
  OutputProcessor output(c.sampling, c.max_tokens, c.eos,
                         std::make_unique<TableStream>(std::vector<std::string>{
                             "<eos>", "Hello", " wor", "ld", "!", "\n", "User:", "aa"}));
  std::string text;
  for (int32_t token : tokens) {
    auto step = output.push(token);
    text += step.text;
    if (used) *used = output.token_count();
    if (step.finish != FinishReason::kNone) return {text, step.finish};
  }
  return {text, FinishReason::kNone};
}

TEST(OutputProcessor, EosEndsWithoutText) {
  EXPECT_EQ(run({}, {1, 2, 3, 0, 4}), std::pair(std::string("Hello world"), FinishReason::kStop));
}

TEST(OutputProcessor, IgnoreEosGoesOnToLength) {
  Case c;
  c.sampling.ignore_eos = true;
  c.max_tokens = 4;
  EXPECT_EQ(run(c, {1, 0, 2, 3, 4}),
            std::pair(std::string("Hello<eos> world"), FinishReason::kLength));
}

TEST(OutputProcessor, StopTokenIds) {
  Case c;
  c.sampling.stop_token_ids = {4};
  EXPECT_EQ(run(c, {1, 4, 2}), std::pair(std::string("Hello"), FinishReason::kStop));
  c.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(run(c, {1, 4, 2}), std::pair(std::string("Hello!"), FinishReason::kStop));
}

TEST(OutputProcessor, StopStringAcrossTokensIsCutExactly) {
  Case c;
  c.sampling.stop = {"world"};
  EXPECT_EQ(run(c, {1, 2, 3, 4}), std::pair(std::string("Hello "), FinishReason::kStop));
  c.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(run(c, {1, 2, 3, 4}), std::pair(std::string("Hello world"), FinishReason::kStop));
}

TEST(OutputProcessor, HeldTextComesOutAtLength) {
  Case c;
  c.sampling.stop = {"world"};
  c.max_tokens = 2;
  EXPECT_EQ(run(c, {1, 2, 3}), std::pair(std::string("Hello wor"), FinishReason::kLength));
}

TEST(OutputProcessor, HeldTextComesOutAtEos) {
  Case c;
  c.sampling.stop = {"world"};
  EXPECT_EQ(run(c, {1, 2, 0}), std::pair(std::string("Hello wor"), FinishReason::kStop));
}

TEST(OutputProcessor, StopWinsOverLengthAtTheSameToken) {
  Case c;
  c.sampling.stop = {"ld"};
  c.max_tokens = 3;
  EXPECT_EQ(run(c, {1, 2, 3}), std::pair(std::string("Hello wor"), FinishReason::kStop));
}

TEST(OutputProcessor, MinTokensPutsOffEveryStop) {
  Case c;
  c.sampling.min_tokens = 3;
  c.sampling.stop = {"!"};
  int used = 0;
  // eos as third token is not an end; '!' in the text of the first three is not searched.
  EXPECT_EQ(run(c, {1, 4, 0, 2, 4, 3}, &used),
            std::pair(std::string("Hello!<eos> wor"), FinishReason::kStop));
  EXPECT_EQ(used, 5);
}

TEST(OutputProcessor, MaxTokensOne) {
  Case c;
  c.max_tokens = 1;
  EXPECT_EQ(run(c, {1, 2}), std::pair(std::string("Hello"), FinishReason::kLength));
}

}  // namespace
}  // namespace expertplex
