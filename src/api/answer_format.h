// The JSON of answers, whole and streamed, for chat and for completions: shapes and order as
// OpenAI's clients expect them. Of a stream: per choice a first chunk (chat: the role), text chunks
// (never a null role), exactly one finish chunk; then, if asked for, one chunk with empty choices
// and the usage; then [DONE]. finish_reason is null until the finish chunk.
//
// Thread rules: a value; const members from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "api/prepare.h"

namespace expertplex {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

struct ChoiceAnswer {
  std::string text;
  const char* finish_reason = "stop";
};

// One event of a text/event-stream: "data: ...\n\n".
std::string sse_event(std::string_view data);
extern const std::string_view kSseDone;

class AnswerFormat {
 public:
  // `created` in unix seconds; `usage_chunk`: chunks carry "usage": null and the last one the
  // numbers.
  AnswerFormat(AnswerKind kind, std::string id, int64_t created, const std::string& model,
               bool usage_chunk);

  // Events of a stream.
  std::string first_chunk(int choice, std::string_view echo) const;  // may be empty
  std::string text_chunk(int choice, std::string_view text) const;
  std::string finish_chunk(int choice, const char* reason) const;
  std::string end(const Usage& usage) const;              // usage chunk if asked for, then [DONE]
  static std::string error_event(const ApiError& error);  // then [DONE]

  // The body of an answer that is not streamed.
  std::string whole(const std::vector<ChoiceAnswer>& choices, const Usage& usage) const;

 private:
  std::string chunk(std::string_view choices, std::string_view usage) const;

  AnswerKind kind_;
  bool usage_chunk_;
  std::string stream_head_;  // {"id":...,"model":...
  std::string whole_head_;
};

}  // namespace expertplex
