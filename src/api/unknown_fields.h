// UnknownFields: warns about fields of requests that this server does not know, once per name, so
// that a misspelt field can be found and a busy client does not fill the log.
//
// Thread rules: one thread.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace expertplex {

class UnknownFields {
 public:
  // Names come from clients: what is kept of them is bounded.
  static constexpr size_t kMaxNames = 100;
  static constexpr size_t kMaxNameBytes = 80;

  // Those of `names` that are to be logged now, ready to be printed.
  std::vector<std::string> take_new(const std::vector<std::string>& names);
  // Logs them.
  void warn(const std::vector<std::string>& names);

 private:
  std::set<std::string> seen_;
};

}  // namespace expertplex
