// Result<T>: how everything that the outside world can cause (bad files, bad requests, a full
// queue, a peer that went away) travels back to whoever can tell the user. What only a bug can
// cause is a check (base/check.h) instead.
//
// Thread rules: values, no shared state.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace expertplex {

// Why an operation failed, in the classes that a caller treats differently.
enum class ErrorCode {
  kInvalidArgument,    // malformed or out-of-range input: HTTP 400, exit code 2
  kNotFound,           // a file, model or route that is not there: HTTP 404
  kResourceExhausted,  // queue or memory full, may be retried: HTTP 429
  kUnavailable,        // starting, draining, or a peer is gone: HTTP 503
  kDeadlineExceeded,   // a wait reached its limit
  kCancelled,          // the user or a shutdown ended it
  kUnsupported,        // well-formed, but this build cannot do it: HTTP 501
  kInternal,           // a fault of ours that was caught: HTTP 500
};

const char* error_code_name(ErrorCode code);

// One clear line: what went wrong, where, what was expected, what was there, what to do.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  // The same error with `where: ` in front (a file, a field), for use on the way up.
  Error in(std::string_view where) const {
    return Error{code, fmt::format("{}: {}", where, message)};
  }
};

template <typename... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    EXPERTPLEX_CHECK(ok(), "value() of a failed Result: {}", error().message);
    return std::get<0>(state_);
  }
  const T& value() const& { return const_cast<Result*>(this)->value(); }
  T&& value() && { return std::move(value()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// EXPERTPLEX_TRY(expression): returns the error of a failed Result from the enclosing function.
// EXPERTPLEX_ASSIGN(declaration, expression): the same, and else binds the value.
#define EXPERTPLEX_TRY(...)                                             \
  do {                                                                  \
    if (auto result_ = (__VA_ARGS__); !result_) return result_.error(); \
  } while (0)
#define EXPERTPLEX_CONCAT_(a, b) a##b
#define EXPERTPLEX_CONCAT(a, b) EXPERTPLEX_CONCAT_(a, b)
#define EXPERTPLEX_ASSIGN_(temporary, declaration, ...) \
  auto temporary = (__VA_ARGS__);                       \
  if (!temporary) return temporary.error();             \
  declaration = std::move(*temporary)
#define EXPERTPLEX_ASSIGN(declaration, ...) \
  EXPERTPLEX_ASSIGN_(EXPERTPLEX_CONCAT(result_at_, __LINE__), declaration, __VA_ARGS__)

}  // namespace expertplex
