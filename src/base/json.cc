#include "base/json.h"

#include "base/file.h"
#include "base/shorten.h"

namespace expertplex {
namespace {

// Of what the parser choked on, which may be the whole text.
constexpr size_t kMaxQuotedBytes = 400;

// Counts nesting without building anything, so that a megabyte of '[' costs nothing.
bool nesting_exceeds(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Error wrong_type(std::string_view field, const char* expected, const Json& value) {
  return make_error(ErrorCode::kInvalidArgument, "field '{}': expected {}, got {}", field, expected,
                    json_type_name(value));
}

// The field's value; null when it is absent.
const Json* find(const Json& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(field);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Error missing(std::string_view field) {
  return make_error(ErrorCode::kInvalidArgument, "field '{}': missing", field);
}

Result<int64_t> as_int(std::string_view field, const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return wrong_type(field, "an integer", value);
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  // 1.0 is an integer to every JSON library that clients use.
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number >= -9e15 && number <= 9e15 &&
        number == static_cast<double>(static_cast<int64_t>(number)))
      return static_cast<int64_t>(number);
  }
  return wrong_type(field, "an integer", value);
}

Result<double> as_number(std::string_view field, const Json& value) {
  if (!value.is_number()) return wrong_type(field, "a number", value);
  return value.get<double>();
}

Result<bool> as_bool(std::string_view field, const Json& value) {
  if (!value.is_boolean()) return wrong_type(field, "true or false", value);
  return value.get<bool>();
}

Result<std::string> as_string(std::string_view field, const Json& value) {
  if (!value.is_string()) return wrong_type(field, "a string", value);
  return value.get<std::string>();
}

}  // namespace

Result<Json> parse_json(std::string_view text, int max_depth) {
  if (nesting_exceeds(text, max_depth)) {
    return make_error(ErrorCode::kInvalidArgument, "JSON is nested deeper than {} levels",
                      max_depth);
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    // nlohmann's text starts with "[json.exception.parse_error.101] "; users need what follows.
    std::string_view what = e.what();
    if (const auto end = what.find("] "); end != std::string_view::npos)
      what.remove_prefix(end + 2);
    return make_error(ErrorCode::kInvalidArgument, "not valid JSON: {}",
                      shorten(std::string(what), kMaxQuotedBytes));
  }
}

Result<Json> read_json_file(const std::string& path, size_t max_bytes) {
  EXPERTPLEX_ASSIGN(const std::string text, read_file(path, max_bytes));
  auto json = parse_json(text);
  if (!json) return json.error().in(path);
  return json;
}

const char* json_type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "something else";
  }
}

#define EXPERTPLEX_JSON_GETTER(type, name, default_type)                   \
  Result<type> get_##name(const Json& object, std::string_view field) {    \
    const Json* value = find(object, field);                               \
    if (!value) return missing(field);                                     \
    return as_##name(field, *value);                                       \
  }                                                                        \
  Result<type> get_##name##_or(const Json& object, std::string_view field, \
                               default_type fallback) {                    \
    const Json* value = find(object, field);                               \
    if (!value) return type(std::move(fallback));                          \
    return as_##name(field, *value);                                       \
  }
EXPERTPLEX_JSON_GETTER(int64_t, int, int64_t)
EXPERTPLEX_JSON_GETTER(double, number, double)
EXPERTPLEX_JSON_GETTER(bool, bool, bool)
EXPERTPLEX_JSON_GETTER(std::string, string, std::string)
#undef EXPERTPLEX_JSON_GETTER

}  // namespace expertplex
