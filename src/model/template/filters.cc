// The filters of `x | name(...)` that work on one value.
#include "model/template/filters.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "model/template/text.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;

Value trim(const Value& v, const Arguments& a) {
  a.expect_at_most(1);
  return Value(std::string(strip(v.text(), a.string_or(0, "chars", ""), true, true)));
}

// As transformers defines it: json.dumps without HTML escapes.
Value to_json_filter(const Value& v, const Arguments& a) {
  JsonStyle style;
  style.ensure_ascii = a.truth_or(0, "ensure_ascii", false);
  style.indent = static_cast<int>(std::clamp<int64_t>(a.integer_or(1, "indent", -1), -1, 64));
  style.sort_keys = a.truth_or(3, "sort_keys", false);
  // Not assigned from a literal: g++ 12 then warns of an overlap that cannot be.
  if (style.indent >= 0) style.item_separator = std::string(1, ',');
  if (const Value* separators = a.find(2, "separators"); separators && separators->truthy()) {
    if (!separators->is(Kind::kList) || separators->list().size() != 2) {
      fail("tojson: separators: expected two strings");
    }
    style.item_separator = separators->list()[0].text();
    style.key_separator = separators->list()[1].text();
  }
  return Value(to_json(v, style));
}

Value length(const Value& v, const Arguments& a) {
  a.expect_at_most(0);
  switch (v.kind()) {
    case Kind::kString:
      return Value(static_cast<int64_t>(code_point_count(v.string())));
    case Kind::kList:
      return Value(static_cast<int64_t>(v.list().size()));
    case Kind::kDict:
      return Value(static_cast<int64_t>(v.dict().entries.size()));
    case Kind::kUndefined:
      return Value(int64_t{0});
    default:
      fail("'{}' has no length", v.type_name());
  }
}

Value default_value(const Value& v, const Arguments& a) {
  a.expect_at_most(2);
  const bool use = v.is(Kind::kUndefined) || (a.truth_or(1, "boolean", false) && !v.truthy());
  if (!use) return v;
  const Value* fallback = a.find(0, "default_value");
  return fallback ? *fallback : Value("");
}

Value first(const Value& v, const Arguments&) {
  const auto items = iterate(v);
  return items.empty() ? Value::undefined("first") : items.front();
}
Value last(const Value& v, const Arguments&) {
  const auto items = iterate(v);
  return items.empty() ? Value::undefined("last") : items.back();
}

Value replace(const Value& v, const Arguments& a) {
  a.expect_at_most(3);
  return Value(replace_all(v.text(), a.require(0, "old").text(), a.require(1, "new").text(),
                           a.integer_or(2, "count", -1)));
}

Value items(const Value& v, const Arguments& a) {
  a.expect_at_most(0);
  if (v.is(Kind::kUndefined)) return Value(Value::List{});
  if (!v.is(Kind::kDict)) fail("items: expected a dict, got '{}'", v.type_name());
  return call_method("items", v, {});
}

// A number at the beginning to the end of a string, white space aside.
std::optional<double> parse_number(const std::string& text) {
  const std::string trimmed(strip(text, "", true, true));
  if (trimmed.empty() || trimmed.size() > 400) return std::nullopt;
  if (trimmed.find_first_of("xXpP") != std::string::npos)
    return std::nullopt;  // strtod reads hexadecimal
  char* end = nullptr;
  const double number = std::strtod(trimmed.c_str(), &end);
  if (end != trimmed.c_str() + trimmed.size()) return std::nullopt;
  return number;
}

Value to_int(const Value& v, const Arguments& a) {
  a.expect_at_most(1);
  const int64_t fallback = a.integer_or(0, "default", 0);
  if (v.is(Kind::kInt) || v.is(Kind::kBool)) return Value(v.integer());
  std::optional<double> number;
  if (v.is(Kind::kFloat)) number = v.number();
  if (v.is(Kind::kString)) {
    char* end = nullptr;
    const std::string trimmed(strip(v.string(), "", true, true));
    errno = 0;
    const long long integer = std::strtoll(trimmed.c_str(), &end, 10);
    const bool whole = !trimmed.empty() && end == trimmed.c_str() + trimmed.size();
    if (whole && errno == 0) return Value(static_cast<int64_t>(integer));
    number = parse_number(v.string());
  }
  if (!number || !(std::fabs(*number) < 9.2e18)) return Value(fallback);
  return Value(static_cast<int64_t>(*number));
}

Value to_float(const Value& v, const Arguments& a) {
  a.expect_at_most(1);
  const Value* fallback = a.find(0, "default");
  if (v.is_number()) return Value(v.number());
  const auto number = v.is(Kind::kString) ? parse_number(v.string()) : std::nullopt;
  if (number) return Value(*number);
  return fallback ? *fallback : Value(0.0);
}

Value absolute(const Value& v, const Arguments&) {
  if (!v.is_number()) fail("abs: expected a number, got '{}'", v.type_name());
  if (v.is(Kind::kFloat)) return Value(std::fabs(v.number()));
  if (v.integer() == INT64_MIN) fail("integer overflow");
  return Value(v.integer() < 0 ? -v.integer() : v.integer());
}

Value round_filter(const Value& v, const Arguments& a) {
  a.expect_at_most(2);
  if (!v.is_number()) fail("round: expected a number, got '{}'", v.type_name());
  const int64_t precision = std::clamp<int64_t>(a.integer_or(0, "precision", 0), -18, 18);
  const std::string method = a.string_or(1, "method", "common");
  const double factor = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.number() * factor;
  if (method == "ceil") return Value(std::ceil(scaled) / factor);
  if (method == "floor") return Value(std::floor(scaled) / factor);
  if (method != "common") fail("round: method: expected common, ceil or floor, got '{}'", method);
  return Value(std::nearbyint(scaled) / factor);  // halves to even, as Python
}

Value indent(const Value& v, const Arguments& a) {
  a.expect_at_most(3);
  const Value* width = a.find(0, "width");
  const std::string space =
      width && width->is(Kind::kString)
          ? width->string()
          : std::string(
                static_cast<size_t>(std::clamp<int64_t>(a.integer_or(0, "width", 4), 0, 1000)),
                ' ');
  const bool indent_first = a.truth_or(1, "first", false);
  const bool blank = a.truth_or(2, "blank", false);
  std::string out;
  bool begin = true;
  for (const auto& line : split_lines(v.text() + "\n")) {
    if (!begin) out += '\n';
    if (begin ? indent_first : blank || !line.empty()) out += space;
    out += line;
    begin = false;
  }
  return Value(std::move(out));
}

}  // namespace

const FilterTable& value_filters() {
  static const FilterTable kFilters = {
      {"trim", trim},
      {"tojson", to_json_filter},
      {"length", length},
      {"count", length},
      {"default", default_value},
      {"d", default_value},
      {"first", first},
      {"last", last},
      {"replace", replace},
      {"items", items},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round_filter},
      {"indent", indent},
      {"upper", [](const Value& v, const Arguments&) { return Value(to_upper(v.text())); }},
      {"lower", [](const Value& v, const Arguments&) { return Value(to_lower(v.text())); }},
      {"title", [](const Value& v, const Arguments&) { return Value(to_title(v.text())); }},
      {"capitalize",
       [](const Value& v, const Arguments&) { return Value(to_capitalized(v.text())); }},
      {"string", [](const Value& v, const Arguments&) { return Value(v.text()); }},
      {"safe", [](const Value& v, const Arguments&) { return Value(v.text()); }},
      {"list", [](const Value& v, const Arguments&) { return Value(iterate(v)); }},
  };
  return kFilters;
}

bool is_filter(std::string_view name) {
  return value_filters().count(name) != 0 || sequence_filters().count(name) != 0;
}

Value call_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  const auto it = value_filters().find(name);
  return it != value_filters().end() ? it->second(value, arguments)
                                     : sequence_filters().at(name)(value, arguments);
}

}  // namespace expertplex::chat
