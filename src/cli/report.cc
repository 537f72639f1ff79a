#include <cstdio>

#include "cli/verbs.h"

namespace expertplex::cli {

int report(const Error& error) {
  std::string line = error.message;
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

int exit_code_of(const Result<void>& result) { return result.ok() ? 0 : report(result.error()); }

}  // namespace expertplex::cli
