#include "api/tiny_tokenizer.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/json.h"

namespace expertplex::testing {
namespace {

constexpr const char* kTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string utf8(int code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on.
Json byte_vocabulary() {
  Json vocabulary = Json::object();
  int shifted = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    vocabulary[utf8(printable ? byte : 256 + shifted++)] = byte;
  }
  return vocabulary;
}

Json added_token(int id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

void write(const std::filesystem::path& path, const Json& json) {
  std::ofstream(path) << json.dump();
}

}  // namespace

std::shared_ptr<const Tokenizer> tiny_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    char pattern[] = "/tmp/expertplex-api-test-XXXXXX";
    EXPERTPLEX_CHECK(mkdtemp(pattern) != nullptr);
    const std::filesystem::path directory = pattern;
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", true}};
    write(directory / "tokenizer.json",
          {{"version", "1.0"},
           {"truncation", nullptr},
           {"padding", nullptr},
           {"added_tokens", {added_token(256, "<|im_start|>"), added_token(257, "<|im_end|>")}},
           {"normalizer", nullptr},
           {"pre_tokenizer", byte_level},
           {"post_processor", nullptr},
           {"decoder", byte_level},
           {"model",
            {{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr},
             {"fuse_unk", false},
             {"byte_fallback", false},
             {"vocab", byte_vocabulary()},
             {"merges", Json::array()}}}});
    write(directory / "tokenizer_config.json",
          {{"chat_template", kTemplate}, {"eos_token", "<|im_end|>"}});
    auto loaded = Tokenizer::load(directory.string());
    std::filesystem::remove_all(directory);
    EXPERTPLEX_CHECK(loaded.ok(), "{}", loaded.error().message);
    return *loaded;
  }();
  return tokenizer;
}

ServedModel tiny_model(int max_model_len) {
  ServedModel model;
  model.names = {"tiny", "tiny-alias"};
  model.created = 1700000000;
  model.vocab_size = 258;
  model.max_model_len = max_model_len;
  model.tokenizer = tiny_tokenizer();
  auto chat_template = ChatTemplate::parse(model.tokenizer->chat_template());
  EXPERTPLEX_CHECK(chat_template.ok(), "{}", chat_template.error().message);
  model.chat_template = *chat_template;
  return model;
}

}  // namespace expertplex::testing
