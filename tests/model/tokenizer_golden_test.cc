// Every style of tokenizer.json against the ids and texts of the `tokenizers` library.
#include <gtest/gtest.h>

#include "golden_files.h"
#include "model/tokenizer.h"

namespace expertplex {
namespace {

std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                   const std::vector<int32_t>& ids, bool skip_special) {
  IncrementalDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, SameIdsAndTexts) {
  const std::string directory = golden_directory("tokenizers/") + GetParam();
  auto tokenizer = Tokenizer::load(directory);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto texts = read_json_lines(golden_directory("tokenizers/texts.jsonl"));
  const auto cases = read_json_lines(directory + "/cases.jsonl");
  ASSERT_EQ(texts.size(), cases.size());
  int failures = 0;
  for (size_t i = 0; i < texts.size() && failures < 10; ++i) {
    const auto text = texts[i].get<std::string>();
    const auto shown = texts[i].dump(-1, ' ', true).substr(0, 200);
    const auto ids = cases[i]["ids"].get<std::vector<int32_t>>();
    const auto special = cases[i].value("special_ids", ids);
    const auto added = cases[i].value("added_ids", special);
    auto check = [&](const char* what, bool parse_special, bool add_special, const auto& expected) {
      const auto got = (*tokenizer)->encode(text, parse_special, add_special);
      ASSERT_TRUE(got) << got.error().message;
      failures += *got != expected;
      EXPECT_EQ(*got, expected) << what << " of line " << i + 1 << ": " << shown;
    };
    check("ids", false, false, ids);
    check("special_ids", true, false, special);
    check("added_ids", true, true, added);
    const auto decoded = cases[i].value("decoded", text);
    EXPECT_EQ(stream(*tokenizer, special, false), decoded) << shown;
    EXPECT_EQ(stream(*tokenizer, special, true), cases[i].value("decoded_skip", decoded)) << shown;
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, TokenizerGolden,
                         testing::Values("gpt2", "o200k", "single_digits_nfc",
                                         "possessive_ignore_merges", "three_splits",
                                         "digits_prefix_space", "added_token_flags",
                                         "split_removed", "split_merged_with_previous",
                                         "split_merged_with_next", "split_contiguous",
                                         "split_isolated_inverted", "split_removed_inverted"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace expertplex
