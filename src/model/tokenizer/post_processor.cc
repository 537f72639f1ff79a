#include "model/tokenizer/post_processor.h"

#include "model/tokenizer/bpe.h"

namespace expertplex {
namespace {

template <typename... Args>
Error broken(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

const Json* find_array(const Json& json, const char* field) {
  if (!json.is_object()) return nullptr;
  const auto it = json.find(field);
  return it == json.end() || !it->is_array() ? nullptr : &*it;
}

// The ids that a template's special token stands for.
Result<std::vector<int32_t>> special_ids(const Json& json, const std::string& name) {
  const auto tokens = json.find("special_tokens");
  if (tokens == json.end() || !tokens->is_object() || !tokens->contains(name)) {
    return broken("field 'special_tokens': '{}' is missing", name);
  }
  const Json* ids = find_array((*tokens)[name], "ids");
  if (!ids) return broken("field 'special_tokens': '{}': expected an array 'ids'", name);
  std::vector<int32_t> result;
  for (const auto& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      return broken("field 'special_tokens': '{}': expected ids of 0 to {}", name, kMaxTokenId);
    }
    result.push_back(id.get<int32_t>());
  }
  return result;
}

Result<PostProcessor> read_template(const Json& json) {
  const Json* single = find_array(json, "single");
  if (!single) return broken("field 'single': expected an array");
  PostProcessor result;
  int sequences = 0;
  for (const auto& part : *single) {
    if (part.is_object() && part.contains("Sequence")) {
      ++sequences;
    } else if (part.is_object() && part.contains("SpecialToken")) {
      EXPERTPLEX_ASSIGN(const std::string name, get_string(part["SpecialToken"], "id"));
      EXPERTPLEX_ASSIGN(const auto ids, special_ids(json, name));
      auto& side = sequences == 0 ? result.prefix : result.suffix;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      return broken("field 'single': expected objects with Sequence or SpecialToken");
    }
  }
  if (sequences != 1)
    return broken("field 'single': expected the text once, got it {} times", sequences);
  return result;
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(const Json& json) {
  PostProcessor result;
  if (json.is_null()) return result;
  EXPERTPLEX_ASSIGN(const std::string type, get_string(json, "type"));
  if (type == "ByteLevel") return result;
  if (type == "TemplateProcessing") return read_template(json);
  if (type != "Sequence") {
    return make_error(ErrorCode::kUnsupported, "post-processor '{}' is not supported", type);
  }
  const Json* parts = find_array(json, "processors");
  if (!parts) return broken("field 'processors': expected an array");
  for (const auto& part : *parts) {
    EXPERTPLEX_ASSIGN(const PostProcessor inner, from_json(part));
    result.prefix.insert(result.prefix.begin(), inner.prefix.begin(), inner.prefix.end());
    result.suffix.insert(result.suffix.end(), inner.suffix.begin(), inner.suffix.end());
  }
  return result;
}

Result<void> check_decoder(const Json& json) {
  EXPERTPLEX_ASSIGN(const std::string type, get_string_or(json, "type", "none"));
  if (type == "ByteLevel") return {};
  const Json* parts = find_array(json, "decoders");
  bool byte_level = false;
  if (type == "Sequence" && parts) {
    for (const auto& part : *parts) {
      EXPERTPLEX_ASSIGN(const std::string inner, get_string_or(part, "type", "none"));
      if (inner != "Fuse") EXPERTPLEX_TRY(check_decoder(part));
      byte_level |= inner != "Fuse";
    }
  }
  if (byte_level) return {};
  return make_error(ErrorCode::kUnsupported, "this build runs ByteLevel, got {}", type);
}

}  // namespace expertplex
