// The tests of `x is name`.
#include <unordered_map>

#include "model/template/builtins.h"
#include "model/template/text.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;
using Test = bool (*)(const Value&, const Arguments&);

bool same(const Value& v, const Arguments& a) { return equal(v, a.require(0, "other")); }
bool remainder_is(const Value& v, int64_t divisor, int64_t rest) {
  if (!v.is_number() || v.is(Kind::kFloat)) fail("expected an integer, got '{}'", v.type_name());
  if (divisor == 0) fail("division by zero");
  return divisor == -1 || v.integer() % divisor == rest ||
         (rest != 0 && v.integer() % divisor == -rest);
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> kTests = {
      {"defined", [](const Value& v, const Arguments&) { return !v.is(Kind::kUndefined); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is(Kind::kUndefined); }},
      {"none", [](const Value& v, const Arguments&) { return v.is(Kind::kNone); }},
      {"boolean", [](const Value& v, const Arguments&) { return v.is(Kind::kBool); }},
      {"true", [](const Value& v, const Arguments&) { return v.is(Kind::kBool) && v.truthy(); }},
      {"false", [](const Value& v, const Arguments&) { return v.is(Kind::kBool) && !v.truthy(); }},
      {"integer", [](const Value& v, const Arguments&) { return v.is(Kind::kInt); }},
      {"float", [](const Value& v, const Arguments&) { return v.is(Kind::kFloat); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"string", [](const Value& v, const Arguments&) { return v.is(Kind::kString); }},
      {"mapping", [](const Value& v, const Arguments&) { return v.is(Kind::kDict); }},
      {"sequence",
       [](const Value& v, const Arguments&) {
         return v.is(Kind::kList) || v.is(Kind::kString) || v.is(Kind::kDict) ||
                v.is(Kind::kUndefined);
       }},
      {"iterable",
       [](const Value& v, const Arguments&) {
         return v.is(Kind::kList) || v.is(Kind::kString) || v.is(Kind::kDict) ||
                v.is(Kind::kUndefined);
       }},
      {"callable", [](const Value& v, const Arguments&) { return v.is(Kind::kMacro); }},
      {"odd", [](const Value& v, const Arguments&) { return remainder_is(v, 2, 1); }},
      {"even", [](const Value& v, const Arguments&) { return remainder_is(v, 2, 0); }},
      {"divisibleby",
       [](const Value& v, const Arguments& a) {
         return remainder_is(v, a.integer_or(0, "num", 0), 0);
       }},
      {"lower",
       [](const Value& v, const Arguments&) {
         return v.text() == to_lower(v.text()) && v.text() != to_upper(v.text());
       }},
      {"upper",
       [](const Value& v, const Arguments&) {
         return v.text() == to_upper(v.text()) && v.text() != to_lower(v.text());
       }},
      {"in", [](const Value& v, const Arguments& a) { return contains(a.require(0, "seq"), v); }},
      {"eq", same},
      {"equalto", same},
      {"sameas", same},
      {"ne", [](const Value& v, const Arguments& a) { return !same(v, a); }},
      {"lt",
       [](const Value& v, const Arguments& a) { return compare(v, a.require(0, "other")) < 0; }},
      {"le",
       [](const Value& v, const Arguments& a) { return compare(v, a.require(0, "other")) <= 0; }},
      {"gt",
       [](const Value& v, const Arguments& a) { return compare(v, a.require(0, "other")) > 0; }},
      {"ge",
       [](const Value& v, const Arguments& a) { return compare(v, a.require(0, "other")) >= 0; }},
  };
  return kTests;
}

}  // namespace

bool is_test(std::string_view name) { return tests().count(name) != 0; }

bool call_test(std::string_view name, const Value& value, const Arguments& arguments) {
  return tests().at(name)(value, arguments);
}

}  // namespace expertplex::chat
