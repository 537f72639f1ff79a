#include "cli/byte_size.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string>

namespace expertplex::cli {

Result<int64_t> parse_byte_size(std::string_view text) {
  const std::string copy(text);
  const auto wrong = make_error(ErrorCode::kInvalidArgument,
                                "expected a size like 512M, 2G or 65536, got '{}'", copy);
  if (copy.empty() || !std::isdigit(static_cast<unsigned char>(copy[0]))) return wrong;
  char* end = nullptr;
  double value = std::strtod(copy.c_str(), &end);
  std::string suffix(end);
  for (char& c : suffix) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::string units = "BKMGT";
  const size_t unit = suffix.empty() ? 0 : units.find(suffix[0]);
  const std::string rest = suffix.empty() ? "" : suffix.substr(1);
  const bool known =
      unit != std::string::npos && (rest.empty() || (unit > 0 && (rest == "B" || rest == "IB")));
  if (!known) return wrong;
  value *= std::pow(1024.0, static_cast<double>(unit));
  if (!std::isfinite(value) || value > 9e18) return wrong;
  return static_cast<int64_t>(value);
}

}  // namespace expertplex::cli
