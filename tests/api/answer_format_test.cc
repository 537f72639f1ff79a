// Error bodies, whole answers and stream events, byte for byte.
#include "api/answer_format.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace expertplex {
namespace {

TEST(ErrorBody, IsOpenAisShape) {
  EXPECT_EQ(error_body(bad_request("field 'n': expected 1 to 16, got 17", "n")),
            R"({"error":{"message":"field 'n': expected 1 to 16, got 17",)"
            R"("type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(error_body(bad_request("no \"quotes\"\n", {}, "invalid_json")),
            R"({"error":{"message":"no \"quotes\"\n","type":"invalid_request_error",)"
            R"("param":null,"code":"invalid_json"}})");
}

TEST(ErrorBody, SurvivesAnyBytes) {
  const std::string body = error_body(bad_request("bad \xff\xfe bytes", "\xc3"));
  ASSERT_TRUE(parse_json(body).ok());
  EXPECT_NE(body.find("bad \xEF\xBF\xBD"), std::string::npos);
  EXPECT_LT(error_body(bad_request(std::string(1 << 20, 'x'))).size(), 2000u);
}

TEST(ErrorResponse, StatusTypeAndRetryAfterFollowTheCode) {
  struct Case {
    ErrorCode code;
    int status;
    const char* type;
    bool retry;
  };
  const Case cases[] = {
      {ErrorCode::kInvalidArgument, 400, "invalid_request_error", false},
      {ErrorCode::kNotFound, 404, "invalid_request_error", false},
      {ErrorCode::kResourceExhausted, 429, "rate_limit_error", true},
      {ErrorCode::kUnavailable, 503, "service_unavailable_error", true},
      {ErrorCode::kCancelled, 503, "service_unavailable_error", true},
      {ErrorCode::kDeadlineExceeded, 504, "timeout_error", false},
      {ErrorCode::kUnsupported, 501, "not_implemented_error", false},
      {ErrorCode::kInternal, 500, "server_error", false},
  };
  for (const Case& c : cases) {
    const HttpResponse response =
        error_response(to_api_error(make_error(c.code, "field 'top_p': no")));
    EXPECT_EQ(response.status, c.status);
    EXPECT_EQ(response.body, fmt::format(R"({{"error":{{"message":"field 'top_p': no","type":"{}",)"
                                         R"("param":"top_p","code":null}}}})",
                                         c.type));
    EXPECT_EQ(!response.headers.empty(), c.retry);
  }
}

TEST(ChatFormat, Stream) {
  const AnswerFormat format(AnswerKind::kChat, "chatcmpl-1", 17, "m", false);
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"m",)";
  EXPECT_EQ(format.first_chunk(0, ""),
            head + R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
                   R"("logprobs":null,"finish_reason":null}]})"
                   "\n\n");
  EXPECT_EQ(format.text_chunk(1, "a\"b"),
            head + R"("choices":[{"index":1,"delta":{"content":"a\"b"},"logprobs":null,)"
                   R"("finish_reason":null}]})"
                   "\n\n");
  EXPECT_EQ(format.finish_chunk(0, "length"),
            head + R"("choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]})"
                   "\n\n");
  EXPECT_EQ(format.end({3, 4}), "data: [DONE]\n\n");
}

TEST(ChatFormat, StreamWithUsage) {
  const AnswerFormat format(AnswerKind::kChat, "chatcmpl-1", 17, "m", true);
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"m",)";
  EXPECT_EQ(format.finish_chunk(0, "stop"),
            head + R"("choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],)"
                   R"("usage":null})"
                   "\n\n");
  EXPECT_EQ(format.end({3, 4}),
            head + R"("choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,)"
                   R"("total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}})"
                   "\n\ndata: [DONE]\n\n");
}

TEST(ChatFormat, Whole) {
  const AnswerFormat format(AnswerKind::kChat, "chatcmpl-1", 17, "m", false);
  EXPECT_EQ(format.whole({{"x", "stop"}, {"y", "length"}}, {3, 4}),
            R"({"id":"chatcmpl-1","object":"chat.completion","created":17,"model":"m","choices":[)"
            R"({"index":0,"message":{"role":"assistant","content":"x"},"logprobs":null,)"
            R"("finish_reason":"stop"},)"
            R"({"index":1,"message":{"role":"assistant","content":"y"},"logprobs":null,)"
            R"("finish_reason":"length"}],)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
            R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(CompletionFormat, StreamAndWhole) {
  const AnswerFormat format(AnswerKind::kCompletion, "cmpl-1", 17, "m", false);
  const std::string head =
      R"(data: {"id":"cmpl-1","object":"text_completion","created":17,"model":"m",)";
  EXPECT_EQ(format.first_chunk(0, ""), "");
  EXPECT_EQ(format.first_chunk(0, "echo"), format.text_chunk(0, "echo"));
  EXPECT_EQ(format.text_chunk(0, "é"),
            head + R"("choices":[{"index":0,"text":"é","logprobs":null,"finish_reason":null}]})"
                   "\n\n");
  EXPECT_EQ(format.finish_chunk(2, "stop"),
            head + R"("choices":[{"index":2,"text":"","logprobs":null,"finish_reason":"stop"}]})"
                   "\n\n");
  EXPECT_EQ(format.whole({{"x", "stop"}}, {1, 1}),
            R"({"id":"cmpl-1","object":"text_completion","created":17,"model":"m","choices":[)"
            R"({"index":0,"text":"x","logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(ErrorEvent, IsFollowedByDone) {
  EXPECT_EQ(AnswerFormat::error_event(bad_request("x")),
            R"(data: {"error":{"message":"x","type":"invalid_request_error","param":null,)"
            R"("code":null}})"
            "\n\ndata: [DONE]\n\n");
}

}  // namespace
}  // namespace expertplex
