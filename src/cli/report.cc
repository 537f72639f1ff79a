#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/shorten.h"
#include "cli/verbs.h"

namespace expertplex::cli {

// A message may quote what it was given; the terminal need not show all of it.
constexpr size_t kMaxLineBytes = 2000;

int report(const Error& error) {
  std::string line = shorten(error.message, kMaxLineBytes);
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "expertplex: error: {}\n", line);
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
      return kExitBadInput;
    default:
      return kExitFailed;
  }
}

Result<void> write_stdout(std::string_view text) {
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written == text.size() && std::fflush(stdout) == 0) return {};
  return make_error(ErrorCode::kInternal, "cannot write to stdout: {}", std::strerror(errno));
}

int exit_code_of(const Result<void>& result) { return result.ok() ? 0 : report(result.error()); }

}  // namespace expertplex::cli
