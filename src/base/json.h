// Reading JSON from outside: every failure names the field, what was expected and what was there.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace expertplex {

using Json = nlohmann::json;

// Parses text; the error says line and column. Never throws. Nesting deeper than `max_depth` is
// refused: nlohmann destroys deep values without harm, but visitors of ours recurse.
Result<Json> parse_json(std::string_view text, int max_depth = 64);

// Reads and parses a file (at most `max_bytes`).
Result<Json> read_json_file(const std::string& path, size_t max_bytes = size_t{256} << 20);

// The JSON type in words a user knows: "string", "integer", "array", ...
const char* json_type_name(const Json& value);

// Typed access to a required field of an object; `where` is the file or request it stands in.
Result<int64_t> get_int(const Json& object, std::string_view field);
Result<double> get_number(const Json& object, std::string_view field);
Result<bool> get_bool(const Json& object, std::string_view field);
Result<std::string> get_string(const Json& object, std::string_view field);

// The same with a default for a field that is absent or null.
Result<int64_t> get_int_or(const Json& object, std::string_view field, int64_t fallback);
Result<double> get_number_or(const Json& object, std::string_view field, double fallback);
Result<bool> get_bool_or(const Json& object, std::string_view field, bool fallback);
Result<std::string> get_string_or(const Json& object, std::string_view field, std::string fallback);

}  // namespace expertplex
