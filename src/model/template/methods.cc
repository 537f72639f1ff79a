// The methods of strings, dicts and lists. Those that change a list or dict are refused, as in
// Jinja's immutable sandbox.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "model/template/builtins.h"
#include "model/template/text.h"
#include "model/tokenizer/utf8.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;
using StringMethod = Value (*)(const std::string&, const Arguments&);

Value stripped(const std::string& s, const Arguments& a, bool left, bool right) {
  a.expect_at_most(1);
  const Value* characters = a.find(0, "chars");
  if (characters && characters->is(Kind::kString) && characters->string().empty()) return Value(s);
  return Value(std::string(strip(s, a.string_or(0, "chars", ""), left, right)));
}

Value list_of(const std::vector<std::string>& parts) {
  Value::List list;
  for (const auto& part : parts) list.emplace_back(part);
  return Value(std::move(list));
}

Value split_method(const std::string& s, const Arguments& a) {
  a.expect_at_most(2);
  const Value* separator = a.find(0, "sep");
  if (separator && separator->is(Kind::kString) && separator->string().empty())
    fail("empty separator");
  return list_of(split(s, a.string_or(0, "sep", ""), a.integer_or(1, "maxsplit", -1)));
}

// Whether one of the affixes (a string or a list of strings) fits.
template <typename F>
Value any_affix(const Arguments& a, F fits) {
  a.expect_at_most(1);
  const Value& affix = a.require(0, "prefix");
  const auto items = affix.is(Kind::kList) ? affix.list() : Value::List{affix};
  for (const auto& item : items) {
    if (!item.is(Kind::kString)) fail("expected a string, got '{}'", item.type_name());
    if (fits(item.string())) return Value(true);
  }
  return Value(false);
}

Value starts_with(const std::string& s, const Arguments& a) {
  return any_affix(a, [&](const std::string& x) { return s.starts_with(x); });
}
Value ends_with(const std::string& s, const Arguments& a) {
  return any_affix(a, [&](const std::string& x) { return s.ends_with(x); });
}

Value replace_method(const std::string& s, const Arguments& a) {
  a.expect_at_most(3);
  a.require(0, "old");
  a.require(1, "new");
  return Value(replace_all(s, a.string_or(0, "old", ""), a.string_or(1, "new", ""),
                           a.integer_or(2, "count", -1)));
}

// The index in code points of the first or last occurrence; -1 if there is none.
Value find_method(const std::string& s, const Arguments& a, bool last) {
  a.expect_at_most(1);
  const std::string& needle = a.require(0, "sub").text();
  const size_t at = last ? s.rfind(needle) : s.find(needle);
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(code_point_count(std::string_view(s).substr(0, at))));
}

Value count_method(const std::string& s, const Arguments& a) {
  a.expect_at_most(1);
  const std::string needle = a.require(0, "sub").text();
  if (needle.empty()) return Value(static_cast<int64_t>(code_point_count(s)) + 1);
  int64_t count = 0;
  for (size_t at = s.find(needle); at != std::string::npos;
       at = s.find(needle, at + needle.size())) {
    ++count;
  }
  return Value(count);
}

Value join_method(const std::string& s, const Arguments& a) {
  a.expect_at_most(1);
  std::string out;
  bool first = true;
  for (const auto& item : iterate(a.require(0, "iterable"))) {
    if (!item.is(Kind::kString)) fail("join: expected strings, got '{}'", item.type_name());
    if (!first) out += s;
    first = false;
    out += item.string();
  }
  return Value(std::move(out));
}

Value is_all(const std::string& s, bool (*fits)(uint32_t)) {
  const auto pieces = code_points(s);
  return Value(!pieces.empty() &&
               std::all_of(pieces.begin(), pieces.end(), [&](std::string_view piece) {
                 return fits(scan_utf8(piece, 0).code_point);
               }));
}
bool is_ascii_digit(uint32_t c) { return c >= '0' && c <= '9'; }

const std::unordered_map<std::string_view, StringMethod>& string_methods() {
  static const std::unordered_map<std::string_view, StringMethod> kMethods = {
      {"strip",
       [](const std::string& s, const Arguments& a) { return stripped(s, a, true, true); }},
      {"lstrip",
       [](const std::string& s, const Arguments& a) { return stripped(s, a, true, false); }},
      {"rstrip",
       [](const std::string& s, const Arguments& a) { return stripped(s, a, false, true); }},
      {"split", split_method},
      {"splitlines",
       [](const std::string& s, const Arguments& a) {
         a.expect_at_most(0);
         return list_of(split_lines(s));
       }},
      {"startswith", starts_with},
      {"endswith", ends_with},
      {"replace", replace_method},
      {"upper", [](const std::string& s, const Arguments&) { return Value(to_upper(s)); }},
      {"lower", [](const std::string& s, const Arguments&) { return Value(to_lower(s)); }},
      {"title", [](const std::string& s, const Arguments&) { return Value(to_title(s)); }},
      {"capitalize",
       [](const std::string& s, const Arguments&) { return Value(to_capitalized(s)); }},
      {"find", [](const std::string& s, const Arguments& a) { return find_method(s, a, false); }},
      {"rfind", [](const std::string& s, const Arguments& a) { return find_method(s, a, true); }},
      {"count", count_method},
      {"join", join_method},
      {"isspace",
       [](const std::string& s, const Arguments&) { return is_all(s, is_python_space); }},
      {"isdigit", [](const std::string& s, const Arguments&) { return is_all(s, is_ascii_digit); }},
      {"removeprefix",
       [](const std::string& s, const Arguments& a) {
         const std::string prefix = a.require(0, "prefix").text();
         return Value(s.starts_with(prefix) ? s.substr(prefix.size()) : s);
       }},
      {"removesuffix",
       [](const std::string& s, const Arguments& a) {
         const std::string suffix = a.require(0, "suffix").text();
         return Value(s.ends_with(suffix) ? s.substr(0, s.size() - suffix.size()) : s);
       }},
  };
  return kMethods;
}

Value call_dict_method(std::string_view name, const Dict& dict, const Arguments& a) {
  if (name == "get") {
    a.expect_at_most(2);
    const Value& key = a.require(0, "key");
    const Value* value = key.is(Kind::kString) ? dict.find(key.string()) : nullptr;
    const Value* fallback = a.find(1, "default");
    return value ? *value : fallback ? *fallback : Value::none();
  }
  a.expect_at_most(0);
  Value::List list;
  for (const auto& [key, value] : dict.entries) {
    if (name == "keys") list.emplace_back(key);
    if (name == "values") list.push_back(value);
    if (name == "items") list.push_back(Value(Value::List{Value(key), value}));
  }
  return name == "copy" ? Value(dict) : Value(std::move(list));
}

Value call_list_method(std::string_view name, const Value::List& list, const Arguments& a) {
  a.expect_at_most(1);
  const Value& wanted = a.require(0, "value");
  if (name == "count") {
    return Value(static_cast<int64_t>(std::count_if(
        list.begin(), list.end(), [&](const Value& item) { return equal(item, wanted); })));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (equal(list[i], wanted)) return Value(static_cast<int64_t>(i));
  }
  fail("index: the list does not hold {}", wanted.repr());
}

constexpr std::array<std::string_view, 5> kDictMethods = {"get", "keys", "values", "items", "copy"};
constexpr std::array<std::string_view, 6> kDictChanges = {"pop",        "popitem", "clear",
                                                          "setdefault", "update",  "fromkeys"};
constexpr std::array<std::string_view, 2> kListMethods = {"count", "index"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool is_dict_method(std::string_view name) {
  return has(kDictMethods, name) || has(kDictChanges, name);
}

bool is_method(std::string_view name) {
  return string_methods().count(name) || has(kDictMethods, name) || has(kListMethods, name);
}

Value call_method(std::string_view name, const Value& object, const Arguments& arguments) {
  switch (object.kind()) {
    case Kind::kUndefined:
      fail("'{}' is undefined", object.undefined_name());
    case Kind::kString:
      if (const auto it = string_methods().find(name); it != string_methods().end()) {
        return it->second(object.string(), arguments);
      }
      break;
    case Kind::kDict:
      if (has(kDictMethods, name)) return call_dict_method(name, object.dict(), arguments);
      break;
    case Kind::kList:
      if (has(kListMethods, name)) return call_list_method(name, object.list(), arguments);
      break;
    default:
      break;
  }
  fail("'{}' has no method '{}'", object.type_name(), name);
}

}  // namespace expertplex::chat
