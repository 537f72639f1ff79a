// Errors as OpenAI's clients parse them: {"error":{"message","type","param","code"}} with the
// status codes that their retry rules expect.
//
// Thread rules: values.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "api/http_types.h"
#include "base/result.h"

namespace expertplex {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::optional<std::string> param;  // the request's field
  std::optional<std::string> code;   // a word for programs, such as "model_not_found"
};

// 400, naming a field of the request.
ApiError bad_request(std::string message, std::optional<std::string> param = {},
                     std::optional<std::string> code = {});
// From our own errors: the status of base/result.h, and `param` where the message starts with
// "field 'x'".
ApiError to_api_error(const Error& error);

// {"error":{...}}; never throws, whatever bytes the message holds.
std::string error_body(const ApiError& error);
// The whole answer; 429 and 503 carry Retry-After.
HttpResponse error_response(const ApiError& error);

// A JSON string literal with quotes. Invalid UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text);

// 500 for an exception that left a handler; what it says goes to the log.
ApiError internal_error(const std::exception& exception);

HttpResponse json_response(std::string body, int status = 200);

}  // namespace expertplex
