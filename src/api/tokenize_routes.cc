#include "api/tokenize_routes.h"

#include "api/field_reader.h"
#include "api/openai_types.h"
#include "api/prepare.h"

namespace expertplex {
namespace {

constexpr size_t kMaxDetokenizedIds = size_t{1} << 20;

using Text = std::variant<std::string, ApiError>;

// The text to tokenise; `add_special` gets the default of its kind.
Text text_of(const Json& object, const ServedModel& model, bool& add_special) {
  FieldReader reader(object);
  if (object.contains("messages")) {
    ChatRequest chat;
    reader.read("add_generation_prompt", chat.add_generation_prompt);
    add_special = false;
    reader.read("add_special_tokens", add_special);
    if (reader.error()) return *reader.error();
    if (auto error = parse_messages(object, chat.messages)) return *error;
    return render_chat(model, chat);
  }
  if (!reader.find("prompt")) {
    return bad_request("field 'prompt': missing; 'messages' would do too", "prompt");
  }
  std::string prompt;
  reader.read("prompt", prompt);
  add_special = true;
  reader.read("add_special_tokens", add_special);
  if (reader.error()) return *reader.error();
  return prompt;
}

std::optional<ApiError> open_request(std::string_view body, const ServedModel& model,
                                     Json& object) {
  if (auto error = parse_object(body, object)) return error;
  FieldReader reader(object);
  std::string name;
  reader.read("model", name);
  if (reader.error()) return reader.error();
  return model.check_name(name);
}

}  // namespace

HttpResponse tokenize(std::string_view body, const ServedModel& model) {
  Json object;
  if (auto error = open_request(body, model, object)) return error_response(*error);
  bool add_special = true;
  const Text text = text_of(object, model, add_special);
  if (const auto* error = std::get_if<ApiError>(&text)) return error_response(*error);
  auto tokens = model.tokenizer->encode(std::get<std::string>(text), true, add_special);
  if (!tokens) return error_response(to_api_error(tokens.error().in("field 'prompt'")));
  return json_response(fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}]}})",
                                   tokens->size(), model.max_model_len, fmt::join(*tokens, ",")));
}

HttpResponse detokenize(std::string_view body, const ServedModel& model) {
  Json object;
  if (auto error = open_request(body, model, object)) return error_response(*error);
  const auto tokens = object.find("tokens");
  if (tokens == object.end()) {
    return error_response(bad_request("field 'tokens': missing", "tokens"));
  }
  std::vector<int32_t> ids;
  if (tokens->is_array() && tokens->size() > kMaxDetokenizedIds) {
    return error_response(bad_request(fmt::format("field 'tokens': expected at most {} ids, got {}",
                                                  kMaxDetokenizedIds, tokens->size()),
                                      "tokens"));
  }
  if (auto error = parse_token_ids(*tokens, "tokens", ids)) return error_response(*error);
  return json_response(
      fmt::format(R"({{"prompt":{}}})", json_quote(model.tokenizer->decode(ids, false))));
}

}  // namespace expertplex
