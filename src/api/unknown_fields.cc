#include "api/unknown_fields.h"

#include "api/api_error.h"
#include "base/log.h"

namespace expertplex {

std::vector<std::string> UnknownFields::take_new(const std::vector<std::string>& names) {
  std::vector<std::string> fresh;
  for (const std::string& name : names) {
    if (seen_.size() >= kMaxNames) break;
    const std::string printable = json_quote(std::string_view(name).substr(0, kMaxNameBytes));
    if (seen_.insert(printable).second) fresh.push_back(printable);
  }
  return fresh;
}

void UnknownFields::warn(const std::vector<std::string>& names) {
  for (const std::string& name : take_new(names)) {
    log_warn("a request has the field {}, which this server does not know and ignores", name);
  }
}

}  // namespace expertplex
