// The two tables of filters (see builtins.h, which looks in both).
#pragma once

#include <string_view>
#include <unordered_map>

#include "model/template/builtins.h"

namespace expertplex::chat {

using Filter = Value (*)(const Value&, const Arguments&);
using FilterTable = std::unordered_map<std::string_view, Filter>;

const FilterTable& value_filters();     // work on one value
const FilterTable& sequence_filters();  // work on the items of a list, string or dict

}  // namespace expertplex::chat
