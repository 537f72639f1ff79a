// generation_config.json: which of its fields become defaults, and what is said about the rest.
#include "model/generation_config.h"

#include <gmock/gmock.h>

#include "model/temp_directory.h"

namespace expertplex {
namespace {

using ::testing::HasSubstr;

Result<SamplingDefaults> load(const std::string& text) {
  const TempDirectory directory;
  directory.write("generation_config.json", text);
  return load_sampling_defaults(directory.path());
}

TEST(SamplingDefaultsTest, ComeFromTheFile) {
  const auto defaults = load(
      R"({"temperature":0.6,"top_p":0.95,"top_k":20,"do_sample":true,"repetition_penalty":1.0})");
  ASSERT_TRUE(defaults.ok()) << defaults.error().message;
  SamplingParams params;
  defaults->apply_to(params);
  EXPECT_FLOAT_EQ(params.temperature, 0.6f);
  EXPECT_FLOAT_EQ(params.top_p, 0.95f);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_TRUE(defaults->not_applied.empty());
}

TEST(SamplingDefaultsTest, AreOpenAisWithoutAFileOrItsFields) {
  const TempDirectory empty;
  for (const auto& defaults :
       {load_sampling_defaults(empty.path()), load("{}"), load(R"({"top_p":null,"top_k":-1})")}) {
    ASSERT_TRUE(defaults.ok()) << defaults.error().message;
    EXPECT_FLOAT_EQ(defaults->temperature, 1);
    EXPECT_FLOAT_EQ(defaults->top_p, 1);
    EXPECT_EQ(defaults->top_k, 0);
  }
}

TEST(SamplingDefaultsTest, WhatCannotBeAppliedIsNamed) {
  const auto defaults = load(R"({"repetition_penalty":1.05,"min_p":0.1,"num_beams":1})");
  ASSERT_TRUE(defaults.ok()) << defaults.error().message;
  EXPECT_EQ(defaults->not_applied,
            (std::vector<std::string>{"repetition_penalty 1.05", "min_p 0.1"}));
}

TEST(SamplingDefaultsTest, BrokenFilesSayWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[", "not valid JSON"},
      {"[]", "expected a JSON object, got an array"},
      {R"({"temperature":"hot"})", "field 'temperature': expected a number, got a string"},
      {R"({"temperature":-1})", "field 'temperature': expected 0 to 2, got -1"},
      {R"({"top_p":0})", "field 'top_p': expected above 0"},
      {R"({"top_k":0.5})", "field 'top_k': expected an integer"},
      {R"({"top_k":-2})", "field 'top_k': expected -1 (all tokens) or more, got -2"},
  };
  for (const auto& [text, message] : cases) {
    const auto defaults = load(text);
    ASSERT_FALSE(defaults.ok()) << text;
    EXPECT_THAT(defaults.error().message, HasSubstr("generation_config.json: "));
    EXPECT_THAT(defaults.error().message, HasSubstr(message));
  }
}

}  // namespace
}  // namespace expertplex
