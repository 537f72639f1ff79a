#include "model/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/post_processor.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

// What decoding gives for a token's string: the bytes it spells, or, where a letter is foreign to
// the byte alphabet (added tokens with spaces, for example), the string itself.
std::string decoded_bytes(const std::string& token) {
  auto bytes = spelled_bytes(token);
  return bytes ? std::move(*bytes) : token;
}

Result<AddedToken> read_added_token(const Json& json) {
  AddedToken token;
  EXPERTPLEX_ASSIGN(const int64_t id, get_int(json, "id"));
  if (id < 0 || id > kMaxTokenId) {
    return make_error(ErrorCode::kInvalidArgument, "field 'id': expected 0 to {}, got {}",
                      kMaxTokenId, id);
  }
  token.id = static_cast<int32_t>(id);
  EXPERTPLEX_ASSIGN(token.content, get_string(json, "content"));
  EXPERTPLEX_ASSIGN(token.special, get_bool_or(json, "special", false));
  EXPERTPLEX_ASSIGN(token.normalized, get_bool_or(json, "normalized", !token.special));
  EXPERTPLEX_ASSIGN(token.single_word, get_bool_or(json, "single_word", false));
  EXPERTPLEX_ASSIGN(token.lstrip, get_bool_or(json, "lstrip", false));
  EXPERTPLEX_ASSIGN(token.rstrip, get_bool_or(json, "rstrip", false));
  return token;
}

// A token of tokenizer_config.json: a string, an object with `content`, or null.
std::string token_text(const Json& config, const char* field) {
  const auto it = config.find(field);
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    return (*it)["content"].get<std::string>();
  }
  return {};
}

// chat_template: a string, or a list of named ones of which "default" counts.
std::string default_template(const Json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return {};
  for (const auto& entry : *it) {
    if (token_text(entry, "name") == "default") return token_text(entry, "template");
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  AddedTokenMatcher raw_tokens;         // looked for in the text as it came
  AddedTokenMatcher normalized_tokens;  // looked for in the normalized text
  std::vector<std::string> decoded;     // by id; empty where the id is not in use
  std::vector<bool> special;            // by id
  std::string chat_template, bos_token, eos_token;

  Result<void> read_tokenizer(const Json& json);
  Result<void> read_added_tokens(const Json& list);
  Result<void> read_config(const std::string& directory);
  void set_decoded(int32_t id, const std::string& token);
  Result<void> encode_part(std::string_view text, bool parse_special,
                           std::vector<int32_t>& ids) const;
};

void Tokenizer::Impl::set_decoded(int32_t id, const std::string& token) {
  const auto index = static_cast<size_t>(id);
  if (index >= decoded.size()) {
    decoded.resize(index + 1);
    special.resize(index + 1);
  }
  decoded[index] = decoded_bytes(token);
}

Result<void> Tokenizer::Impl::read_added_tokens(const Json& list) {
  if (list.is_null()) return {};
  if (!list.is_array()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an array, got {}",
                      json_type_name(list));
  }
  // The `tokenizers` library numbers added tokens itself: by the vocabulary, else one after the
  // last.
  auto next_id = static_cast<int64_t>(bpe.vocabulary().size());
  for (const auto& entry : list) {
    EXPERTPLEX_ASSIGN(const AddedToken token, read_added_token(entry));
    const auto known = bpe.vocabulary().find(token.content);
    const int64_t expected = known != bpe.vocabulary().end() ? known->second : next_id;
    if (token.id != expected) {
      return make_error(ErrorCode::kInvalidArgument, "token '{}': expected id {}, got {}",
                        token.content, expected, token.id);
    }
    next_id = std::max(next_id, expected + 1);
    set_decoded(token.id, token.content);
    special[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized) {
      std::string storage;
      normalized_tokens.add(token, normalizer.normalize(token.content, storage));
    } else {
      raw_tokens.add(token, token.content);
    }
  }
  return {};
}

Result<void> Tokenizer::Impl::read_tokenizer(const Json& json) {
  if (!json.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object, got {}",
                      json_type_name(json));
  }
  const auto field = [&](const char* name) { return json.value(name, Json()); };
  const auto read = [&](const char* name, auto& into, auto result) -> Result<void> {
    if (!result) return result.error().in(fmt::format("field '{}'", name));
    into = std::move(*result);
    return {};
  };
  const auto model = json.find("model");
  if (model == json.end()) {
    return make_error(ErrorCode::kInvalidArgument, "field 'model': missing");
  }
  EXPERTPLEX_TRY(read("model", bpe, Bpe::from_json(*model)));
  EXPERTPLEX_TRY(read("normalizer", normalizer, Normalizer::from_json(field("normalizer"))));
  EXPERTPLEX_TRY(
      read("pre_tokenizer", pre_tokenizer, PreTokenizer::from_json(field("pre_tokenizer"))));
  EXPERTPLEX_TRY(
      read("post_processor", post_processor, PostProcessor::from_json(field("post_processor"))));
  if (auto decoder = check_decoder(field("decoder")); !decoder) {
    return decoder.error().in("field 'decoder'");
  }
  for (const auto& [token, id] : bpe.vocabulary()) set_decoded(id, token);
  auto added = read_added_tokens(field("added_tokens"));
  if (!added) return added.error().in("field 'added_tokens'");
  return {};
}

Result<void> Tokenizer::Impl::read_config(const std::string& directory) {
  const fs::path root(directory);
  const std::string config_path = (root / "tokenizer_config.json").string();
  EXPERTPLEX_ASSIGN(const bool has_config, file_exists(config_path));
  if (has_config) {
    EXPERTPLEX_ASSIGN(const Json config, read_json_file(config_path));
    if (!config.is_object()) {
      return make_error(ErrorCode::kInvalidArgument, "{}: expected an object, got {}", config_path,
                        json_type_name(config));
    }
    chat_template = default_template(config);
    bos_token = token_text(config, "bos_token");
    eos_token = token_text(config, "eos_token");
  }
  const std::string template_path = (root / "chat_template.jinja").string();
  EXPERTPLEX_ASSIGN(const bool has_template, file_exists(template_path));
  if (has_template) {
    EXPERTPLEX_ASSIGN(chat_template, read_file(template_path, kMaxTemplateBytes));
  }
  return {};
}

// Between two added tokens of the raw text.
Result<void> Tokenizer::Impl::encode_part(std::string_view text, bool parse_special,
                                          std::vector<int32_t>& ids) const {
  std::string storage;
  const std::string_view normalized = normalizer.normalize(text, storage);
  for (const TextPart& part : normalized_tokens.split(normalized, parse_special)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    Words words;
    EXPERTPLEX_TRY(pre_tokenizer.split(part.text, words));
    for (const std::string_view word : words.views) bpe.encode(word, ids);
  }
  return {};
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& directory) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  const std::string path = (fs::path(directory) / "tokenizer.json").string();
  EXPERTPLEX_ASSIGN(const Json json, read_json_file(path));
  auto read = tokenizer->impl_->read_tokenizer(json);
  if (!read) return read.error().in(path);
  EXPERTPLEX_TRY(tokenizer->impl_->read_config(directory));
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool parse_special,
                                               bool add_special) const {
  if (text.size() > kMaxTextBytes) {
    return make_error(ErrorCode::kInvalidArgument, "the text has {} bytes; expected at most {}",
                      text.size(), kMaxTextBytes);
  }
  if (const size_t bad = find_invalid_utf8(text); bad != text.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the text is not valid UTF-8 at byte {}", bad);
  }
  std::vector<int32_t> ids;
  if (add_special) ids = impl_->post_processor.prefix;
  for (const TextPart& part : impl_->raw_tokens.split(text, parse_special)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      EXPERTPLEX_TRY(impl_->encode_part(part.text, parse_special, ids));
    }
  }
  if (add_special) {
    const auto& suffix = impl_->post_processor.suffix;
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && is_special(id))) continue;
    bytes += impl_->decoded[static_cast<size_t>(id)];
  }
  return bytes;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->decoded.size()); }

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)];
}

const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }
const std::string& Tokenizer::bos_token() const { return impl_->bos_token; }
const std::string& Tokenizer::eos_token() const { return impl_->eos_token; }

}  // namespace expertplex
