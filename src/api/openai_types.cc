#include "api/openai_types.h"

#include <algorithm>
#include <array>

#include "api/field_reader.h"

namespace expertplex {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

// `field` as a list of strings; one string is a list of one.
void read_stop(FieldReader& reader, std::vector<std::string>& stop) {
  const Json* value = reader.find("stop");
  if (!value) return;
  if (value->is_array() && value->size() > kMaxStopStrings) {
    return reader.fail(bad_request(fmt::format("field 'stop': expected at most {} strings, got {}",
                                               kMaxStopStrings, value->size()),
                                   "stop"));
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    if (!item.is_string()) {
      return reader.fail(
          bad_request(fmt::format("field 'stop': expected a string or a list of strings, got {}{}",
                                  value->is_array() ? "a list with " : "", json_type_name(item)),
                      "stop"));
    }
    stop.push_back(item.get<std::string>());
  }
}

void read_stream_options(FieldReader& reader, GenerationOptions& options) {
  const Json* value = reader.find("stream_options");
  if (!value) return;
  if (!options.stream) {
    return reader.fail(bad_request("field 'stream_options': only allowed with \"stream\": true",
                                   "stream_options"));
  }
  if (!value->is_object()) {
    return reader.fail(bad_request(
        fmt::format("field 'stream_options': expected an object, got {}", json_type_name(*value)),
        "stream_options"));
  }
  FieldReader inner(*value);
  inner.read("include_usage", options.include_usage);
  inner.refuse("continuous_usage_stats", false);
  if (inner.error()) {
    ApiError error = *inner.error();
    error.param = "stream_options." + error.param.value_or("include_usage");
    reader.fail(std::move(error));
  }
}

void refuse_unsupported(FieldReader& reader) {
  reader.refuse("frequency_penalty", 0);
  reader.refuse("presence_penalty", 0);
  reader.refuse("repetition_penalty", 1);
  reader.refuse("min_p", 0);
  reader.refuse("logit_bias");
  reader.refuse("best_of", 1);
  reader.refuse("use_beam_search", false);
  reader.refuse("length_penalty", 1);
  reader.refuse("prompt_logprobs");
  reader.refuse("truncate_prompt_tokens");
  reader.refuse("priority", 0);
  const Json* format = reader.find("response_format");
  if (format && *format != Json{{"type", "text"}}) {
    reader.fail(bad_request(
        "field 'response_format': this server supports only {\"type\":\"text\"}; leave it out",
        "response_format", "unsupported_parameter"));
  }
  for (const char* field : {"guided_json",
                            "guided_json_object",
                            "guided_regex",
                            "guided_choice",
                            "guided_grammar",
                            "structural_tag",
                            "structured_outputs",
                            "regex",
                            "json_schema",
                            "ebnf",
                            "stop_regex",
                            "bad_words",
                            "allowed_token_ids",
                            "logits_processors",
                            "custom_logit_processor",
                            "return_token_ids",
                            "return_tokens_as_token_ids",
                            "return_hidden_states",
                            "lora_path",
                            "audio",
                            "web_search_options",
                            "documents"}) {
    reader.refuse(field);
  }
  reader.refuse("detokenize", true);
}

// Fields that clients send and that have no bearing on the answer of this server.
void accept_harmless(FieldReader& reader) {
  for (const char* field : {"metadata", "store", "service_tier", "safety_identifier",
                            "prompt_cache_key", "parallel_tool_calls", "tool_choice", "request_id",
                            "rid", "cache_salt", "spaces_between_special_tokens"}) {
    reader.accept(field);
  }
}

void read_sampling(FieldReader& reader, SamplingParams& sampling) {
  reader.read("min_tokens", sampling.min_tokens);
  reader.read("temperature", sampling.temperature);
  reader.read("top_p", sampling.top_p);
  reader.read("top_k", sampling.top_k);
  if (sampling.top_k == -1) sampling.top_k = 0;  // how vLLM's and SGLang's users say "all"
  reader.read_seed("seed", sampling.seed);
  read_stop(reader, sampling.stop);
  if (const Json* ids = reader.find("stop_token_ids")) {
    if (ids->is_array() && ids->size() > kMaxStopTokenIds) {
      reader.fail(bad_request(fmt::format("field 'stop_token_ids': expected at most {} ids, got {}",
                                          kMaxStopTokenIds, ids->size()),
                              "stop_token_ids"));
    } else if (auto error = parse_token_ids(*ids, "stop_token_ids", sampling.stop_token_ids)) {
      reader.fail(std::move(*error));
    }
  }
  reader.read("ignore_eos", sampling.ignore_eos);
  reader.read("include_stop_str_in_output", sampling.include_stop_str_in_output);
  reader.read("skip_special_tokens", sampling.skip_special_tokens);
}

void read_max_tokens(FieldReader& reader, const char* field, SamplingParams& sampling) {
  if (!reader.find(field)) return;
  int value = 0;
  reader.read(field, value);
  if (reader.error()) return;
  if (value < 1) {
    return reader.fail(
        bad_request(fmt::format("field '{}': expected at least 1, got {}", field, value), field));
  }
  sampling.max_tokens = value;
}

void read_options(FieldReader& reader, GenerationOptions& options) {
  reader.read("model", options.model);
  reader.read("stream", options.stream);
  read_stream_options(reader, options);
  reader.read("n", options.n);
  if (options.n < 1 || options.n > kMaxChoicesPerPrompt) {
    reader.fail(bad_request(
        fmt::format("field 'n': expected 1 to {}, got {}", kMaxChoicesPerPrompt, options.n), "n"));
  }
  read_sampling(reader, options.sampling);
  refuse_unsupported(reader);
  accept_harmless(reader);
  std::string user;
  reader.read("user", user);
  if (reader.error()) return;
  if (auto valid = validate(options.sampling); !valid) reader.fail(to_api_error(valid.error()));
}

// content: a string, null, or parts of which all are text.
std::optional<ApiError> flatten_content(Json& message, const std::string& where) {
  const std::string param = where + ".content";
  const auto it = message.find("content");
  if (it == message.end() || it->is_null()) {
    if (message["role"] == "assistant") return {};
    if (it == message.end()) return bad_request(fmt::format("field '{}': missing", param), param);
  }
  if (it->is_string()) return {};
  if (!it->is_array()) {
    return bad_request(fmt::format("field '{}': expected a string or a list of text parts, got {}",
                                   param, json_type_name(*it)),
                       param);
  }
  std::string text;
  for (const Json& part : *it) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() &&
                         part.contains("type") && part["type"] == "text";
    if (!is_text) {
      return bad_request(
          fmt::format("field '{}': expected parts like {{\"type\":\"text\",\"text\":\"...\"}}; "
                      "this model reads only text",
                      param),
          param);
    }
    if (&part != &it->front()) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  *it = std::move(text);
  return {};
}

std::optional<ApiError> check_message(Json& message, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object()) {
    return bad_request(
        fmt::format("field '{}': expected an object, got {}", where, json_type_name(message)),
        where);
  }
  const auto role = message.find("role");
  const bool known =
      role != message.end() && role->is_string() &&
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) != kRoles.end();
  if (!known) {
    return bad_request(
        fmt::format("field '{}.role': expected {}, got {}", where, fmt::join(kRoles, ", "),
                    role == message.end()
                        ? "nothing"
                        : role->dump(-1, ' ', false, Json::error_handler_t::replace)),
        where + ".role");
  }
  return flatten_content(message, where);
}

std::optional<ApiError> wrong_prompt(const std::string& got) {
  return bad_request(
      fmt::format("field 'prompt': expected a string, a list of strings, a list of token ids or a "
                  "list of lists of token ids, got {}",
                  got),
      "prompt");
}

std::optional<ApiError> read_prompts(const Json& object, std::vector<Prompt>& prompts) {
  const auto it = object.find("prompt");
  if (it == object.end() || it->is_null()) {
    return bad_request("field 'prompt': missing", "prompt");
  }
  if (it->is_string()) {
    prompts.emplace_back(it->get<std::string>());
    return {};
  }
  if (!it->is_array()) return wrong_prompt(json_type_name(*it));
  if (it->empty()) return wrong_prompt("an empty list");
  if (it->front().is_number()) {
    std::vector<int32_t> ids;
    if (auto error = parse_token_ids(*it, "prompt", ids)) return error;
    prompts.emplace_back(std::move(ids));
    return {};
  }
  if (it->size() > kMaxPrompts) {
    return bad_request(
        fmt::format("field 'prompt': expected at most {} prompts, got {}", kMaxPrompts, it->size()),
        "prompt");
  }
  for (const Json& item : *it) {
    if (item.type() != it->front().type()) return wrong_prompt("a list of several kinds");
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
      continue;
    }
    if (!item.is_array()) return wrong_prompt(fmt::format("a list with {}", json_type_name(item)));
    std::vector<int32_t> ids;
    if (auto error = parse_token_ids(item, "prompt", ids)) return error;
    prompts.emplace_back(std::move(ids));
  }
  return {};
}

}  // namespace

std::optional<ApiError> parse_object(std::string_view body, Json& object) {
  auto parsed = parse_json(body);
  if (!parsed) return bad_request("the body is " + parsed.error().message, {}, "invalid_json");
  if (!parsed->is_object()) {
    return bad_request(
        fmt::format("the body: expected a JSON object, got {}", json_type_name(*parsed)));
  }
  object = std::move(*parsed);
  return {};
}

std::optional<ApiError> parse_messages(const Json& object, Json& messages) {
  const auto it = object.find("messages");
  if (it == object.end() || it->is_null()) {
    return bad_request("field 'messages': missing", "messages");
  }
  if (!it->is_array() || it->empty() || it->size() > kMaxMessages) {
    return bad_request(
        fmt::format(
            "field 'messages': expected a list of 1 to {} messages, got {}", kMaxMessages,
            !it->is_array() ? json_type_name(*it) : fmt::format("a list of {}", it->size())),
        "messages");
  }
  messages = *it;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto error = check_message(messages[i], i)) return error;
  }
  return {};
}

std::optional<ApiError> parse_token_ids(const Json& list, std::string_view field,
                                        std::vector<int32_t>& ids) {
  const auto wrong = [&](std::string got) {
    return bad_request(fmt::format("field '{}': expected a list of token ids, got {}", field, got),
                       std::string(field));
  };
  if (!list.is_array()) return wrong(json_type_name(list));
  ids.reserve(list.size());
  for (const Json& item : list) {
    if (!item.is_number_integer()) {
      return wrong(fmt::format("a list with {}", json_type_name(item)));
    }
    const bool fits = item.is_number_unsigned()
                          ? item.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX)
                          : item.get<int64_t>() >= 0 && item.get<int64_t>() <= INT32_MAX;
    if (!fits) return wrong(fmt::format("the id {}", item.dump()));
    ids.push_back(static_cast<int32_t>(item.get<int64_t>()));
  }
  return {};
}

std::optional<ApiError> parse_chat_request(std::string_view body, ChatRequest& request) {
  Json object;
  if (auto error = parse_object(body, object)) return error;
  FieldReader reader(object);
  read_max_tokens(reader, "max_tokens", request.options.sampling);
  read_max_tokens(reader, "max_completion_tokens", request.options.sampling);
  read_options(reader, request.options);
  reader.refuse("logprobs", false);
  reader.refuse("top_logprobs", 0);
  reader.refuse("tools");
  reader.refuse("functions");
  reader.refuse("continue_final_message", false);
  reader.refuse("chat_template");
  reader.refuse("echo", false);
  const Json* choice = reader.find("tool_choice");
  if (choice && *choice != "none" && *choice != "auto") reader.refuse("tool_choice", "none");
  reader.read("add_generation_prompt", request.add_generation_prompt);
  reader.read("add_special_tokens", request.add_special_tokens);
  if (const Json* arguments = reader.find("chat_template_kwargs")) {
    if (arguments->is_object()) {
      request.template_arguments = *arguments;
    } else {
      reader.fail(
          bad_request(fmt::format("field 'chat_template_kwargs': expected an object, got {}",
                                  json_type_name(*arguments)),
                      "chat_template_kwargs"));
    }
  }
  if (reader.error()) return reader.error();
  reader.accept("messages");
  request.options.unknown_fields = reader.unknown();
  return parse_messages(object, request.messages);
}

std::optional<ApiError> parse_completion_request(std::string_view body,
                                                 CompletionRequest& request) {
  Json object;
  if (auto error = parse_object(body, object)) return error;
  FieldReader reader(object);
  request.options.sampling.max_tokens = kDefaultCompletionTokens;
  read_max_tokens(reader, "max_tokens", request.options.sampling);
  read_options(reader, request.options);
  reader.refuse("logprobs");
  reader.refuse("suffix");
  reader.read("echo", request.echo);
  reader.read("add_special_tokens", request.add_special_tokens);
  if (reader.error()) return reader.error();
  reader.accept("prompt");
  request.options.unknown_fields = reader.unknown();
  return read_prompts(object, request.prompts);
}

}  // namespace expertplex
