// Parses a template. Statements: for, if, set, macro, generation, break, continue, raw, comments.
// Tags, filters, tests, methods and functions that this build does not have are refused with their
// line.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/template/syntax.h"

namespace expertplex::chat {

Result<std::vector<Statement>> parse_template(std::string_view source);

}  // namespace expertplex::chat
