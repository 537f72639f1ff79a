#include "api/api_error.h"

#include "base/json.h"
#include "base/log.h"

namespace expertplex {
namespace {

constexpr size_t kMaxMessageBytes = 600;
constexpr const char* kRetryAfterSeconds = "1";

std::string type_of_status(int status) {
  switch (status) {
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kUnsupported:
      return 501;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

// The parser quotes what it choked on, which may be the whole body.
std::string shorten(std::string message) {
  if (message.size() <= kMaxMessageBytes) return message;
  message.resize(kMaxMessageBytes);
  return message + "...";
}

std::string quote_or_null(const std::optional<std::string>& text) {
  return text ? json_quote(*text) : "null";
}

}  // namespace

ApiError bad_request(std::string message, std::optional<std::string> param,
                     std::optional<std::string> code) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = std::move(code);
  return error;
}

ApiError to_api_error(const Error& error) {
  ApiError api_error;
  api_error.status = status_of(error.code);
  api_error.type = type_of_status(api_error.status);
  api_error.message = error.message;
  constexpr std::string_view kField = "field '";
  if (error.message.starts_with(kField)) {
    const auto end = error.message.find('\'', kField.size());
    if (end != std::string::npos) {
      api_error.param = error.message.substr(kField.size(), end - kField.size());
    }
  }
  return api_error;
}

ApiError internal_error(const std::exception& exception) {
  log_error("a request failed: {}", exception.what());
  return to_api_error(make_error(ErrorCode::kInternal, "internal error"));
}

std::string json_quote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_body(const ApiError& error) {
  return fmt::format(R"({{"error":{{"message":{},"type":{},"param":{},"code":{}}}}})",
                     json_quote(shorten(error.message)), json_quote(error.type),
                     quote_or_null(error.param), quote_or_null(error.code));
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error_body(error), error.status);
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  }
  return response;
}

HttpResponse json_response(std::string body, int status) {
  HttpResponse response;
  response.status = status;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

}  // namespace expertplex
