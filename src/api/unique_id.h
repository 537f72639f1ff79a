// Ids that nobody else has, for answers and requests.
//
// Thread rules: any thread.
#pragma once

#include <string>
#include <string_view>

namespace expertplex {

// `prefix` and 24 hexadecimal digits.
std::string unique_id(std::string_view prefix);

}  // namespace expertplex
