// Logging: one line per event, to stderr, through spdlog. log_info("serving {} on {}", ...).
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>
#include <utility>

#include "base/result.h"

namespace expertplex {

// Sets the level ("debug", "info", "warn", "error") and the line format. Call once, from main.
Result<void> init_logging(std::string_view level);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace expertplex
