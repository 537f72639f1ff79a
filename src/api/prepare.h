// From a request's body to token ids: parse, check, render the chat template, tokenise, compare
// with the context. All of the work that grows with the body, so that long prompts can be prepared
// on the worker thread.
//
// Thread rules: pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/api_error.h"
#include "api/openai_types.h"
#include "api/served_model.h"

namespace expertplex {

enum class AnswerKind { kChat, kCompletion };

struct PreparedPrompt {
  std::vector<int32_t> tokens;
  std::string echo;  // text that the answer starts with
};

struct PreparedRequest {
  AnswerKind kind = AnswerKind::kChat;
  GenerationOptions options;
  std::vector<PreparedPrompt> prompts;
};

using Preparation = std::variant<PreparedRequest, ApiError>;

Preparation prepare_chat(std::string_view body, const ServedModel& model);
Preparation prepare_completion(std::string_view body, const ServedModel& model);

// The chat template applied to checked messages.
std::variant<std::string, ApiError> render_chat(const ServedModel& model,
                                                const ChatRequest& request);

}  // namespace expertplex
