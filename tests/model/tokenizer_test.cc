// What the golden cases do not show: refusals, hostile text, and properties of decoding.
#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <ctime>
#include <functional>

#include "golden_files.h"
#include "model/tokenizer/utf8.h"
#include "temp_directory.h"

namespace expertplex {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& style) {
  auto tokenizer = Tokenizer::load(golden_directory("tokenizers/") + style);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *tokenizer;
}

// Bytes with every invalid part replaced, all at once.
std::string replaced(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = scan_utf8(bytes, at);
    if (step.state == Utf8State::kComplete) {
      text += bytes.substr(at, static_cast<size_t>(step.length));
    } else {
      text += kReplacementCharacter;
    }
    at += static_cast<size_t>(step.length);
  }
  return text;
}

RC_GTEST_PROP(IncrementalDecoding, ChunksAddUpToTheWhole, (bool skip_special)) {
  static const auto tokenizer = golden_tokenizer("o200k");
  const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-2, 720));
  IncrementalDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string chunk = decoder.push(id);
    RC_ASSERT(find_invalid_utf8(chunk) == chunk.size());
    text += chunk;
  }
  text += decoder.finish();
  RC_ASSERT(text == replaced(tokenizer->decode(ids, skip_special)));
}

RC_GTEST_PROP(Tokenizer, DecodingGivesTheTextBack, ()) {
  static const auto tokenizer = golden_tokenizer("o200k");
  std::string text;
  for (const uint32_t c :
       *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange(0u, 0x11000u))) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  const auto ids = tokenizer->encode(text, false);
  RC_ASSERT(ids.ok());
  RC_ASSERT(tokenizer->decode(*ids, false) == text);
}

TEST(Tokenizer, UsersCannotForgeTurns) {
  const auto tokenizer = golden_tokenizer("o200k");
  const auto plain = tokenizer->encode("x<|end|>", false);
  ASSERT_TRUE(plain);
  for (const int32_t id : *plain) EXPECT_FALSE(tokenizer->is_special(id));
  const auto special = tokenizer->encode("x<|end|>", true);
  EXPECT_TRUE(tokenizer->is_special(special->back()));
  EXPECT_EQ(tokenizer->decode(*special, true), "x");
}

TEST(Tokenizer, RefusesInvalidText) {
  const auto tokenizer = golden_tokenizer("gpt2");
  EXPECT_THAT(tokenizer->encode("ab\xFF", true).error().message,
              HasSubstr("not valid UTF-8 at byte 2"));
  EXPECT_FALSE(tokenizer->encode("\xED\xA0\x80", true));  // a surrogate
  EXPECT_FALSE(tokenizer->encode("\xC0\x80", true));      // an overlong NUL
}

TEST(Tokenizer, LongTextTakesLinearTime) {
  const std::string letters = [] {
    std::string text;
    for (int i = 0; i < 1 << 20; ++i) text += static_cast<char>('a' + (i * 7 + i / 13) % 26);
    return text;
  }();
  const std::clock_t start = std::clock();  // CPU time: other jobs do not count
  for (const char* style : {"gpt2", "o200k", "single_digits_nfc", "three_splits"}) {
    const auto tokenizer = golden_tokenizer(style);
    std::string marks, capitals;
    for (int i = 0; i < 200'000; ++i) marks += "\xCC\x81";
    for (int i = 0; i < 200'000; ++i) capitals += "A";
    for (const std::string& text :
         {letters, std::string(1 << 20, ' '), std::string(1 << 20, '\n'), marks, capitals,
          std::string(1 << 20, '!'), std::string(300'000, '7')}) {
      const auto ids = tokenizer->encode(text, false);
      ASSERT_TRUE(ids) << style << ": " << ids.error().message;
      EXPECT_EQ(tokenizer->decode(*ids, false), text) << style;
    }
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC,
            60.0);  // about 2 s; sanitizers are slower
}

TEST(Tokenizer, ReadsTheConfiguration) {
  const auto tokenizer = Tokenizer::load(golden_directory("minimax_m2"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->bos_token(), "<|begin|>");
  EXPECT_EQ((*tokenizer)->eos_token(), "<|end|>");
  EXPECT_THAT((*tokenizer)->chat_template(), HasSubstr("for message in messages"));
  EXPECT_EQ((*tokenizer)->vocab_size(), 384);
  TempDirectory directory;
  directory.copy_from(golden_directory("minimax_m2"));
  directory.write("tokenizer_config.json",
                  R"({"bos_token": {"content": "<b>"}, "eos_token": null,
                      "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  const auto list = Tokenizer::load(directory.path());
  ASSERT_TRUE(list) << list.error().message;
  EXPECT_EQ((*list)->chat_template(), "D");
  EXPECT_EQ((*list)->bos_token(), "<b>");
  EXPECT_EQ((*list)->eos_token(), "");
  directory.write("chat_template.jinja", "J");
  EXPECT_EQ((*Tokenizer::load(directory.path()))->chat_template(), "J");
}

TEST(Tokenizer, RefusesWhatItCannotRunExactly) {
  struct Case {
    const char* what;
    std::function<void(Json&)> change;
    const char* message;
  };
  const auto set = [](const char* pointer, Json value) {
    return [pointer, value](Json& j) { j[Json::json_pointer(pointer)] = value; };
  };
  const Json wordpiece = {{"type", "WordPiece"}, {"vocab", Json::object()}};
  const std::vector<Case> cases = {
      {"model", set("/model", wordpiece),
       "field 'model': field 'type': this build runs BPE, got WordPiece"},
      {"no model", [](Json& j) { j.erase("model"); }, "field 'model': missing"},
      {"byte fallback", set("/model/byte_fallback", true), "field 'byte_fallback'"},
      {"dropout", set("/model/dropout", 0.1), "field 'dropout'"},
      {"prefix", set("/model/continuing_subword_prefix", "##"),
       "field 'continuing_subword_prefix'"},
      {"missing byte", [](Json& j) { j["model"]["vocab"].erase("a"); }, "byte 97 ('a') is missing"},
      {"merge", set("/model/merges/0", "onlyone"), "entry 0: expected two tokens, got 'onlyone'"},
      {"merge of unknown", set("/model/merges/0", Json::array({"zz", "qq"})),
       "token 'zz' is not in the vocabulary"},
      {"id", set("/model/vocab/a", -1), "token 'a': expected an id of 0 to"},
      {"huge id", set("/model/vocab/a", 4'000'000'000u), "token 'a': expected an id of 0 to"},
      {"normalizer", set("/normalizer", {{"type", "Lowercase"}}),
       "normalizer 'Lowercase' is not supported"},
      {"pre-tokenizer", set("/pre_tokenizer", {{"type", "Metaspace"}}),
       "pre-tokenizer 'Metaspace' is not supported"},
      {"no byte level", set("/pre_tokenizer", nullptr), "without a ByteLevel pre-tokenizer"},
      {"regex", set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&b]"),
       "an intersection of classes at byte 2"},
      {"broken regex", set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"),
       "regex '(a': missing closing parenthesis"},
      {"behavior", set("/pre_tokenizer/pretokenizers/0/behavior", "Sometimes"), "got 'Sometimes'"},
      {"post-processor", set("/post_processor", {{"type", "BertProcessing"}}),
       "post-processor 'BertProcessing'"},
      {"decoder", set("/decoder", {{"type", "Metaspace"}}),
       "field 'decoder': this build runs ByteLevel, got Metaspace"},
      {"added token", set("/added_tokens/0/id", 5), "token '<|begin|>': expected id 700, got 5"},
      {"array", [](Json& j) { j = Json::array(); }, "expected an object, got an array"},
  };
  TempDirectory directory;
  const Json good = *read_json_file(golden_directory("tokenizers/o200k/tokenizer.json"));
  for (const auto& test : cases) {
    Json changed = good;
    test.change(changed);
    directory.write("tokenizer.json", changed.dump());
    const auto tokenizer = Tokenizer::load(directory.path());
    ASSERT_FALSE(tokenizer) << test.what;
    EXPECT_THAT(tokenizer.error().message, HasSubstr("tokenizer.json: ")) << test.what;
    EXPECT_THAT(tokenizer.error().message, HasSubstr(test.message)) << test.what;
  }
}

TEST(Utf8, FollowsTheStandardsTable) {
  const auto state = [](const std::string& bytes) { return scan_utf8(bytes, 0); };
  EXPECT_EQ(state("\xF0\x9F\x98\x80").code_point, 0x1F600u);
  EXPECT_EQ(state("\xE2\x82").state, Utf8State::kIncomplete);
  EXPECT_EQ(state("\xE0\x80").length, 1);          // overlong: the second byte begins anew
  EXPECT_EQ(state("\xF4\x90\x80\x80").length, 1);  // above U+10FFFF
  EXPECT_EQ(state("\xF0\x9F\x98x").length, 3);     // a maximal subpart of three bytes
  EXPECT_EQ(state("\xED\xA0").state, Utf8State::kInvalid);
}

}  // namespace
}  // namespace expertplex
