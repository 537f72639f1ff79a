#include "api/prepare.h"

namespace expertplex {
namespace {

constexpr size_t kMaxTokensOfAllPrompts = size_t{16} << 20;

// A prompt, and what was asked for after it, must fit in the context.
std::optional<ApiError> check_length(const std::vector<int32_t>& tokens,
                                     const GenerationOptions& options, const ServedModel& model,
                                     const char* field) {
  constexpr const char* kCode = "context_length_exceeded";
  const size_t limit = static_cast<size_t>(model.max_model_len);
  if (tokens.empty()) {
    return bad_request(fmt::format("field '{}': the prompt has no tokens", field), field);
  }
  if (tokens.size() >= limit) {
    return bad_request(
        fmt::format("this model's context is {} tokens, and the prompt has {} of them, which "
                    "leaves none for the answer; shorten the prompt",
                    limit, tokens.size()),
        field, kCode);
  }
  const size_t asked = static_cast<size_t>(options.sampling.max_tokens.value_or(0));
  if (tokens.size() + asked > limit) {
    return bad_request(
        fmt::format("this model's context is {} tokens, but {} were requested: {} in the prompt "
                    "and {} for the answer; shorten the prompt or lower max_tokens",
                    limit, tokens.size() + asked, tokens.size(), asked),
        field, kCode);
  }
  return {};
}

std::optional<ApiError> check_ids(const std::vector<int32_t>& ids, const ServedModel& model,
                                  const char* field) {
  for (const int32_t id : ids) {
    if (id < model.vocab_size) continue;
    return bad_request(fmt::format("field '{}': the token id {} is outside the vocabulary of {}",
                                   field, id, model.vocab_size),
                       field);
  }
  return {};
}

// What holds for both kinds of request besides their form.
std::optional<ApiError> check_options(const GenerationOptions& options, const ServedModel& model) {
  if (auto error = model.check_name(options.model)) return error;
  return check_ids(options.sampling.stop_token_ids, model, "stop_token_ids");
}

Preparation tokenise_completion(const CompletionRequest& request, PreparedRequest prepared,
                                const ServedModel& model) {
  size_t total = 0;
  for (const Prompt& prompt : request.prompts) {
    PreparedPrompt& next = prepared.prompts.emplace_back();
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      auto encoded = model.tokenizer->encode(*text, true, request.add_special_tokens);
      if (!encoded) return to_api_error(encoded.error().in("field 'prompt'"));
      next.tokens = std::move(*encoded);
      if (request.echo) next.echo = *text;
    } else {
      next.tokens = std::get<std::vector<int32_t>>(prompt);
      if (auto error = check_ids(next.tokens, model, "prompt")) return *error;
      if (request.echo) {
        next.echo =
            model.tokenizer->decode(next.tokens, request.options.sampling.skip_special_tokens);
      }
    }
    if (auto error = check_length(next.tokens, request.options, model, "prompt")) return *error;
    // Every choice has its own copy of the prompt.
    total += next.tokens.size() * static_cast<size_t>(request.options.n);
    if (total > kMaxTokensOfAllPrompts) {
      return bad_request(fmt::format("field 'prompt': expected at most {} tokens in all prompts "
                                     "times n; send fewer prompts at once or a smaller n",
                                     kMaxTokensOfAllPrompts),
                         "prompt");
    }
  }
  return prepared;
}

// OpenAI's newer clients say developer where they said system. A template that does not write the
// word does not know the role, and would refuse or drop what it does not know.
Json messages_for(const ServedModel& model, Json messages) {
  if (model.tokenizer->chat_template().find("developer") != std::string::npos) return messages;
  for (Json& message : messages) {
    if (message["role"] == "developer") message["role"] = "system";
  }
  return messages;
}

}  // namespace

bool ServedModel::serves(std::string_view model) const {
  for (const auto& name : names) {
    if (name == model) return true;
  }
  return false;
}

std::optional<ApiError> ServedModel::check_name(std::string_view model) const {
  if (model.empty() || serves(model)) return {};
  ApiError error =
      bad_request(fmt::format("the model '{}' does not exist; this server has '{}'", model, name()),
                  "model", "model_not_found");
  error.status = 404;
  return error;
}

std::variant<std::string, ApiError> render_chat(const ServedModel& model,
                                                const ChatRequest& request) {
  if (!model.chat_template) {
    return bad_request(fmt::format("chat needs a chat template: {}; use /v1/completions",
                                   model.chat_template_problem),
                       "messages", "chat_template_missing");
  }
  Json variables = request.template_arguments;
  variables["messages"] = messages_for(model, request.messages);
  variables["add_generation_prompt"] = request.add_generation_prompt;
  variables["bos_token"] = model.tokenizer->bos_token();
  variables["eos_token"] = model.tokenizer->eos_token();
  if (!variables.contains("tools")) variables["tools"] = nullptr;
  auto text = model.chat_template->render(variables);
  if (!text) return to_api_error(text.error().in("field 'messages': the chat template says"));
  return std::move(*text);
}

Preparation prepare_chat(std::string_view body, const ServedModel& model) {
  ChatRequest request;
  model.sampling_defaults.apply_to(request.options.sampling);
  if (auto error = parse_chat_request(body, request)) return *error;
  if (auto error = check_options(request.options, model)) return *error;
  auto rendered = render_chat(model, request);
  if (auto* error = std::get_if<ApiError>(&rendered)) return *error;
  auto encoded =
      model.tokenizer->encode(std::get<std::string>(rendered), true, request.add_special_tokens);
  if (!encoded) return to_api_error(encoded.error().in("field 'messages'"));
  PreparedRequest prepared{AnswerKind::kChat, request.options, {}};
  prepared.prompts.push_back({std::move(*encoded), {}});
  if (auto error = check_length(prepared.prompts[0].tokens, request.options, model, "messages")) {
    return *error;
  }
  return prepared;
}

Preparation prepare_completion(std::string_view body, const ServedModel& model) {
  CompletionRequest request;
  model.sampling_defaults.apply_to(request.options.sampling);
  if (auto error = parse_completion_request(body, request)) return *error;
  if (auto error = check_options(request.options, model)) return *error;
  PreparedRequest prepared{AnswerKind::kCompletion, request.options, {}};
  return tokenise_completion(request, std::move(prepared), model);
}

}  // namespace expertplex
