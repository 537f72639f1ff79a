// Thousands of mutated inputs for every parser that reads foreign bytes: none may crash, hang or
// leave its memory (run with the address sanitizer now and then). Fixed seeds, so that a failure
// repeats.
#include <gtest/gtest.h>

#include "base/random.h"
#include "golden_files.h"
#include "model/chat_template.h"
#include "model/model_spec.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "temp_directory.h"

namespace expertplex {
namespace {

const std::string& fragments_of(size_t kind) {
  static const std::vector<std::string> kFragments = {"{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      "\"",
                                                      ",",
                                                      ":",
                                                      "0",
                                                      "-1",
                                                      "1e999",
                                                      "18446744073709551615",
                                                      "9223372036854775807",
                                                      "null",
                                                      "true",
                                                      "\xFF",
                                                      "\xED\xA0\x80",
                                                      std::string(1, '\0'),
                                                      "\\u0000",
                                                      "{{",
                                                      "}}",
                                                      "{%",
                                                      "%}",
                                                      "{#",
                                                      "#}",
                                                      "-%}",
                                                      " if ",
                                                      " else ",
                                                      " in ",
                                                      "(",
                                                      ")",
                                                      "|",
                                                      ".",
                                                      "'",
                                                      "loop",
                                                      "*",
                                                      "~",
                                                      "[:]",
                                                      "\n"};
  return kFragments[kind % kFragments.size()];
}

// A few random edits: bytes changed, parts cut, doubled or moved, fragments put in.
std::string mutate(std::string text, Random& random) {
  const int64_t edits = random.between(1, 6);
  for (int64_t i = 0; i < edits && !text.empty(); ++i) {
    const size_t at = random.below(text.size());
    const size_t length = std::min<size_t>(random.below(24) + 1, text.size() - at);
    switch (random.below(6)) {
      case 0:
        text[at] = static_cast<char>(random.next());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, fragments_of(random.next()));
        break;
      case 4:
        text.replace(at, length, fragments_of(random.next()));
        break;
      default:
        text.insert(random.below(text.size()), text.substr(at, length));
        break;
    }
  }
  return text;
}

TEST(Fuzz, Safetensors) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],)"
      R"("data_offsets":[8,14]},"c":{"dtype":"U8","shape":[],"data_offsets":[14,15]}})";
  const std::string data = "0123456789abcde";
  Random random(1);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    // Half of the time the length stays right, so that the JSON is reached.
    const std::string bytes = i % 2 ? mutate(safetensors_bytes(header, data), random)
                                    : safetensors_bytes(mutate(header, random), data);
    const auto tensors = parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (!tensors) {
      EXPECT_FALSE(tensors.error().message.empty());
      continue;
    }
    ++accepted;
    for (const auto& [name, tensor] : *tensors) {
      const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
      ASSERT_GE(tensor.data, begin);
      ASSERT_LE(tensor.data + tensor.byte_count, begin + bytes.size());
      static_cast<void>(to_floats(tensor));
      static_cast<void>(to_ints(tensor));
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(Fuzz, Config) {
  TempDirectory directory;
  Random random(2);
  for (const char* model : {"minimax_m2_fp8", "qwen3_moe"}) {
    const std::string good = read_json_file(golden_directory(model) + "/config.json")->dump();
    for (int i = 0; i < 2'000; ++i) {
      directory.write("config.json", mutate(good, random));
      const auto spec = load_model_spec(directory.path());
      EXPECT_TRUE(!spec || count_parameters(*spec).total > 0);
    }
  }
}

TEST(Fuzz, Index) {
  TempDirectory directory;
  directory.copy_from(golden_directory("qwen3_moe"));
  const std::string good = directory.read("model.safetensors.index.json");
  const auto spec = load_model_spec(directory.path());
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    directory.write("model.safetensors.index.json", mutate(good, random));
    static_cast<void>(load_model_weights(directory.path(), *spec));
  }
}

TEST(Fuzz, TokenizerJson) {
  // A small vocabulary: the 256 bytes and a few merges.
  Json json = *read_json_file(golden_directory("tokenizers/added_token_flags/tokenizer.json"));
  Json& vocabulary = json["model"]["vocab"];
  for (auto it = vocabulary.begin(); it != vocabulary.end();) {
    it = it.value() >= 280 ? vocabulary.erase(it) : std::next(it);
  }
  auto& merges = json["model"]["merges"];
  merges.erase(merges.begin() + 24, merges.end());
  int32_t id = static_cast<int32_t>(vocabulary.size());
  for (auto& token : json["added_tokens"]) token["id"] = id++;
  const std::string good = json.dump();
  const size_t settings = good.find("\"model\"");
  TempDirectory directory;
  directory.write("tokenizer.json", good);
  ASSERT_TRUE(Tokenizer::load(directory.path()))
      << Tokenizer::load(directory.path()).error().message;
  Random random(4);
  int accepted = 0;
  for (int i = 0; i < 3'000; ++i) {
    // Every other time, only what is not vocabulary: that part is small and has all the options.
    std::string bytes =
        i % 2 ? mutate(good, random)
              : mutate(good.substr(0, settings), random) + mutate(good.substr(settings), random);
    directory.write("tokenizer.json", bytes);
    const auto tokenizer = Tokenizer::load(directory.path());
    if (!tokenizer) continue;
    ++accepted;
    const auto ids =
        (*tokenizer)
            ->encode("Hello  [L] <|end|>\n\n e\xCC\x81 123 \xE4\xBB\x8A\xE5\xA4\xA9", true, true);
    if (ids) static_cast<void>((*tokenizer)->decode(*ids, true));
  }
  EXPECT_GT(accepted, 10);
}

TEST(Fuzz, TokenizerText) {
  const auto tokenizer = *Tokenizer::load(golden_directory("tokenizers/added_token_flags"));
  Random random(5);
  int encoded = 0;
  const auto texts = read_json_lines(golden_directory("tokenizers/texts.jsonl"));
  for (int i = 0; i < 5'000; ++i) {
    const auto& text = texts[random.below(texts.size())].get_ref<const std::string&>();
    const auto ids =
        tokenizer->encode(mutate(text.substr(0, 400), random), random.chance(0.5), true);
    if (!ids) continue;
    ++encoded;
    static_cast<void>(tokenizer->decode(*ids, true));
  }
  EXPECT_GT(encoded, 1'000);
}

TEST(Fuzz, ChatTemplates) {
  std::vector<std::pair<std::string, Json>> seeds;
  const std::string directory = golden_directory("templates/");
  for (const auto& test : read_json_lines(directory + "cases.jsonl")) {
    std::string source = test.value("source", "");
    if (source.empty()) {
      std::ifstream file(directory + test["template"].get<std::string>());
      source.assign(std::istreambuf_iterator<char>(file), {});
    }
    seeds.emplace_back(std::move(source), test["variables"]);
  }
  Random random(6);
  int rendered = 0;
  for (int i = 0; i < 15'000; ++i) {
    const auto& [source, variables] = seeds[random.below(seeds.size())];
    const auto parsed = ChatTemplate::parse(mutate(source, random));
    if (parsed) rendered += (*parsed)->render(variables).ok();
  }
  EXPECT_GT(rendered, 500);
}

}  // namespace
}  // namespace expertplex
