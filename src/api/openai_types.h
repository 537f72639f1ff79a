// The bodies of POST /v1/chat/completions and /v1/completions, parsed and checked. Field names,
// defaults and meanings are OpenAI's, plus the extras that vLLM's users know (top_k, min_tokens,
// stop_token_ids, ignore_eos, ...). A field that this server cannot honour is refused by name
// unless it has its neutral value; fields that nobody knows are accepted and listed, so that the
// log can name them.
//
// Thread rules: values; parsing is pure and runs on any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/api_error.h"
#include "base/json.h"
#include "model/sampling_params.h"

namespace expertplex {

constexpr int kMaxChoicesPerPrompt = 16;  // n
constexpr size_t kMaxPrompts = 1024;      // of one completions request
constexpr size_t kMaxMessages = 16384;
constexpr int kDefaultCompletionTokens = 16;

// What both kinds of request share.
struct GenerationOptions {
  std::string model;  // empty: the served one
  SamplingParams sampling;
  int n = 1;
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  std::vector<std::string> unknown_fields;
};

struct ChatRequest {
  GenerationOptions options;
  // [{role, content, ...}]; content is a string or null: text parts are joined by newlines.
  Json messages;
  bool add_generation_prompt = true;
  bool add_special_tokens = false;           // templates write their own
  Json template_arguments = Json::object();  // chat_template_kwargs
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  bool add_special_tokens = true;
};

// What is wrong with the request, or nothing, and then `request` is complete. Fields that the body
// leaves out stay as they are in `request`: that is where the model's own defaults come in.
std::optional<ApiError> parse_chat_request(std::string_view body, ChatRequest& request);
std::optional<ApiError> parse_completion_request(std::string_view body, CompletionRequest& request);

// The parts that /tokenize shares: a JSON object, a list of messages, a list of token ids.
std::optional<ApiError> parse_object(std::string_view body, Json& object);
std::optional<ApiError> parse_messages(const Json& object, Json& messages);
std::optional<ApiError> parse_token_ids(const Json& list, std::string_view field,
                                        std::vector<int32_t>& ids);

}  // namespace expertplex
