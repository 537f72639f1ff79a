// Where Oniguruma and PCRE2 read a pattern differently, and what is refused instead of guessed.
#include "model/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace expertplex {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex) << regex.error().message;
  std::vector<std::string> found;
  EXPECT_TRUE(regex->for_each_match(
      text, [&](size_t begin, size_t end) { found.push_back(text.substr(begin, end - begin)); }));
  return found;
}

TEST(Regex, ClassesAreThoseOfUnicode) {
  EXPECT_THAT(matches(R"(\s)", "a\xC2\x85\xE1\xA0\x8E\xE2\x80\xA8"),  // NEL and LS, but not U+180E
              ElementsAre("\xC2\x85", "\xE2\x80\xA8"));
  EXPECT_THAT(matches(R"([^\S\n]+)", " \n\t"), ElementsAre(" ", "\t"));
  EXPECT_THAT(matches(R"(\d)", "1\xD9\xA3\xC2\xB2"),
              ElementsAre("1", "\xD9\xA3"));  // not superscript two
  EXPECT_THAT(matches(R"(\w+)", "a_1\xCC\x81-\xE2\x80\xBF"),
              ElementsAre("a_1\xCC\x81", "\xE2\x80\xBF"));
  EXPECT_THAT(matches(R"(\h+)", "xfF9g"), ElementsAre("fF9"));
  EXPECT_THAT(matches(R"(\v)", "\n\x0B"), ElementsAre("\x0B"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "a\xE4\xB8\x80\xE3\x80\x81"),
              ElementsAre("\xE4\xB8\x80"));  // not U+3001
  EXPECT_THAT(matches(R"(\p{^L}|\P{Letter})", "a1"), ElementsAre("1"));
}

TEST(Regex, LinesAndIntervals) {
  EXPECT_THAT(matches("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(matches("a.b", "a\nb a\rb"), ElementsAre("a\rb"));
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("a{x}", "a{x}"), ElementsAre("a{x}"));
  EXPECT_THAT(matches(R"(\bfoo\b)",
                      "foo food \xC3\xA9"
                      "foo foo"),
              ElementsAre("foo", "foo"));
  EXPECT_THAT(matches(R"(\u0041\x42\x{43})", "ABC"), ElementsAre("ABC"));
}

TEST(Regex, EmptyMatchesMoveOn) {
  EXPECT_THAT(matches("x*", "axb"), ElementsAre("", "x", ""));
  EXPECT_THAT(matches("(?=\xC3\xA9)", "\xC3\xA9\xC3\xA9"), ElementsAre("", ""));
}

TEST(Regex, RefusesWhatWouldNotBeTheSame) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[a[bc]]", "a class in a class at byte 2"},
      {"[[:alpha:]]", "a POSIX bracket"},
      {"[a&&b]", "an intersection of classes"},
      {R"((a)\1)", "\\1"},
      {R"([\W])", "\\W in a class"},
      {R"(\xff)", "a raw byte escape"},
      {"a(?i)b", "this kind of group"},
      {"(?m:a)", "this kind of group"},
      {"a{1,3}+", "'+' after an interval"},
      {R"(\p{Nonsense})", "the property 'nonsense'"},
      {R"(\G)", "\\G"},
      {R"(\K)", "\\K"},
      {"(*UTF)a", "a (* verb"},
      {"[a", "an unclosed class"},
      {"a\\", "a trailing backslash"},
      {"(", "missing closing parenthesis"},
  };
  for (const auto& [pattern, message] : cases) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex) << pattern;
    EXPECT_THAT(regex.error().message, HasSubstr(message)) << pattern;
  }
}

TEST(Regex, LongMatches) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), 1u);
  EXPECT_EQ(matches("(?:ab?)+c|a", text.substr(0, 2000)).size(), 2000u);
}

// A pattern of a downloaded tokenizer cannot hang the server.
TEST(Regex, PatternsThatNeedTooManyStepsAreGivenUp) {
  const std::string text = std::string(8000, 'a') + "!b";
  for (const char* pattern : {"(?:a+)+b", "(?:a|a)*b", "(?:a?){30}a{8000}b"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_TRUE(regex) << regex.error().message;
    const auto result = regex->for_each_match(text, [](size_t, size_t) {});
    ASSERT_FALSE(result) << pattern;
    EXPECT_THAT(result.error().message, HasSubstr("the tokenizer's regex takes far more steps"));
  }
}

// Each match keeps to its limit; all together do not.
TEST(Regex, ManySlowMatchesAreGivenUp) {
  const auto regex = Regex::compile("(?:a|a){16}b|a");
  ASSERT_TRUE(regex) << regex.error().message;
  const std::string text(50'000, 'a');
  const auto result = regex->for_each_match(text, [](size_t, size_t) {});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("far more steps"));
}

}  // namespace
}  // namespace expertplex
