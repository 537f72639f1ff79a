// Checks for what only a bug can break. They stay on in release: a wrong answer costs more than a
// compare. Host only; device code has its own in src/cuda.
#pragma once

#include <fmt/format.h>

#include <string>

namespace expertplex {

// Prints the place, the condition and the message to stderr, and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

#define EXPERTPLEX_CHECK(condition, ...)                                            \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      ::expertplex::check_failed(__FILE__, __LINE__, #condition,                    \
                                 ::expertplex::detail::check_message(__VA_ARGS__)); \
  } while (0)

namespace detail {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

}  // namespace expertplex
