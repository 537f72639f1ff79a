#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <iterator>

namespace expertplex {

Result<void> init_logging(std::string_view level) {
  // spdlog has more names, for levels that nothing here uses.
  constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error", "off"};
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (std::find(std::begin(kLevels), std::end(kLevels), level) == std::end(kLevels)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "log level: expected debug, info, warn, error or off, got '{}'", level);
  }
  // stdout belongs to what the user asked for (generated text, tables).
  static auto logger = spdlog::stderr_color_mt("expertplex");
  spdlog::set_default_logger(logger);
  spdlog::set_pattern("%H:%M:%S.%e %^%L%$ %v");
  spdlog::set_level(parsed);
  return {};
}

}  // namespace expertplex
