#include "api/answer_format.h"

namespace expertplex {
namespace {

std::string usage_json(const Usage& usage) {
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":0}}}})",
                     usage.prompt_tokens, usage.completion_tokens,
                     usage.prompt_tokens + usage.completion_tokens);
}

}  // namespace

const std::string_view kSseDone = "data: [DONE]\n\n";

std::string sse_event(std::string_view data) { return fmt::format("data: {}\n\n", data); }

AnswerFormat::AnswerFormat(AnswerKind kind, std::string id, int64_t created,
                           const std::string& model, bool usage_chunk)
    : kind_(kind), usage_chunk_(usage_chunk) {
  const bool chat = kind == AnswerKind::kChat;
  const auto head = [&](const char* object) {
    return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", json_quote(id), object,
                       created, json_quote(model));
  };
  stream_head_ = head(chat ? "chat.completion.chunk" : "text_completion");
  whole_head_ = head(chat ? "chat.completion" : "text_completion");
}

std::string AnswerFormat::chunk(std::string_view choices, std::string_view usage) const {
  return fmt::format("data: {},\"choices\":[{}]{}{}}}\n\n", stream_head_, choices,
                     usage.empty() ? "" : ",\"usage\":", usage);
}

std::string AnswerFormat::first_chunk(int choice, std::string_view echo) const {
  if (kind_ == AnswerKind::kCompletion) return echo.empty() ? "" : text_chunk(choice, echo);
  return chunk(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},)"
                           R"("logprobs":null,"finish_reason":null}})",
                           choice),
               usage_chunk_ ? "null" : "");
}

std::string AnswerFormat::text_chunk(int choice, std::string_view text) const {
  const char* format = kind_ == AnswerKind::kChat
                           ? R"({{"index":{},"delta":{{"content":{}}},"logprobs":null,)"
                             R"("finish_reason":null}})"
                           : R"({{"index":{},"text":{},"logprobs":null,"finish_reason":null}})";
  return chunk(fmt::format(fmt::runtime(format), choice, json_quote(text)),
               usage_chunk_ ? "null" : "");
}

std::string AnswerFormat::finish_chunk(int choice, const char* reason) const {
  const char* format = kind_ == AnswerKind::kChat
                           ? R"({{"index":{},"delta":{{}},"logprobs":null,"finish_reason":"{}"}})"
                           : R"({{"index":{},"text":"","logprobs":null,"finish_reason":"{}"}})";
  return chunk(fmt::format(fmt::runtime(format), choice, reason), usage_chunk_ ? "null" : "");
}

std::string AnswerFormat::end(const Usage& usage) const {
  std::string events = usage_chunk_ ? chunk("", usage_json(usage)) : "";
  return events.append(kSseDone);
}

std::string AnswerFormat::error_event(const ApiError& error) {
  return sse_event(error_body(error)).append(kSseDone);
}

std::string AnswerFormat::whole(const std::vector<ChoiceAnswer>& choices,
                                const Usage& usage) const {
  const char* format = kind_ == AnswerKind::kChat
                           ? R"({{"index":{},"message":{{"role":"assistant","content":{}}},)"
                             R"("logprobs":null,"finish_reason":"{}"}})"
                           : R"({{"index":{},"text":{},"logprobs":null,"finish_reason":"{}"}})";
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) list += ',';
    list +=
        fmt::format(fmt::runtime(format), i, json_quote(choices[i].text), choices[i].finish_reason);
  }
  return fmt::format(R"({},"choices":[{}],"usage":{}}})", whole_head_, list, usage_json(usage));
}

}  // namespace expertplex
