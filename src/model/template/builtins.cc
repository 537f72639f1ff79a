// Arguments, functions, attributes and arithmetic.
#include "model/template/builtins.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "model/template/text.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same

Value make_range(const Arguments& arguments) {
  arguments.expect_at_most(3);
  const bool one = arguments.positional.size() == 1;
  const int64_t start = one ? 0 : arguments.integer_or(0, "start", 0);
  const int64_t stop = arguments.integer_or(one ? 0 : 1, "stop", 0);
  const int64_t step = arguments.integer_or(2, "step", 1);
  if (step == 0) fail("range: step must not be zero");
  Value::List list;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(list.size()) >= kMaxRange)
      fail("range: more than {} numbers", kMaxRange);
    list.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value(std::move(list));
}

// The local time, as Python's datetime.now().strftime writes it.
Value strftime_now(const Arguments& arguments) {
  arguments.expect_at_most(1);
  const std::string format = arguments.string_or(0, "format", "");
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char buffer[512];
  return Value(std::string(buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &local)));
}

Dict named_values(const Arguments& arguments) {
  Dict dict;
  for (const auto& argument : arguments.positional) {
    if (!argument.is(Kind::kDict)) fail("expected a dict, got '{}'", argument.type_name());
    for (const auto& [key, value] : argument.dict().entries) dict.set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  return dict;
}

template <typename F>
Value checked(F f, int64_t a, int64_t b) {
  int64_t result = 0;
  if (f(a, b, &result)) fail("integer overflow");
  return Value(result);
}

Value power(const Value& a, const Value& b) {
  if (a.is(Kind::kFloat) || b.is(Kind::kFloat) || b.integer() < 0) {
    return Value(std::pow(a.number(), b.number()));
  }
  int64_t result = 1;
  int64_t exponent = b.integer();
  if (exponent > 63 && a.integer() != 0 && a.integer() != 1) fail("integer overflow");
  if (a.integer() == 0 || a.integer() == 1) exponent = std::min<int64_t>(exponent, 1);
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, a.integer(), &result)) fail("integer overflow");
  }
  return Value(result);
}

// Division and remainder round towards minus infinity, as in Python.
Value divide(std::string_view name, const Value& a, const Value& b) {
  if (b.number() == 0) fail("division by zero");
  if (name == "/") return Value(a.number() / b.number());
  if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) {
    const double quotient = std::floor(a.number() / b.number());
    return Value(name == "//" ? quotient : a.number() - quotient * b.number());
  }
  if (b.integer() == -1) {
    return name == "//" ? checked([](int64_t x, int64_t y,
                                     int64_t* r) { return __builtin_mul_overflow(x, y, r); },
                                  a.integer(), -1)
                        : Value(int64_t{0});
  }
  int64_t quotient = a.integer() / b.integer();
  int64_t rest = a.integer() % b.integer();
  if (rest != 0 && (rest < 0) != (b.integer() < 0)) {
    --quotient;
    rest += b.integer();
  }
  return Value(name == "//" ? quotient : rest);
}

Value repeat(const Value& value, int64_t count) {
  if (count <= 0) return value.is(Kind::kString) ? Value("") : Value(Value::List{});
  if (count > Value::kMaxWeight / std::max<int64_t>(1, value.weight()))
    fail("a repetition is too long");
  if (value.is(Kind::kString)) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += value.string();
    return Value(std::move(text));
  }
  Value::List list;
  for (int64_t i = 0; i < count; ++i)
    list.insert(list.end(), value.list().begin(), value.list().end());
  return Value(std::move(list));
}

// The index of Python: negative ones count from the end. No value if outside.
std::optional<size_t> position(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

}  // namespace

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Value& Arguments::require(size_t index, std::string_view name) const {
  const Value* value = find(index, name);
  if (!value) fail("argument '{}' is missing", name);
  return *value;
}

std::string Arguments::string_or(size_t index, std::string_view name, std::string fallback) const {
  const Value* value = find(index, name);
  if (!value || value->is(Kind::kNone)) return fallback;
  if (!value->is(Kind::kString)) {
    fail("argument '{}': expected a string, got '{}'", name, value->type_name());
  }
  return value->string();
}

int64_t Arguments::integer_or(size_t index, std::string_view name, int64_t fallback) const {
  const Value* value = find(index, name);
  if (!value || value->is(Kind::kNone)) return fallback;
  if (!value->is(Kind::kInt) && !value->is(Kind::kBool)) {
    fail("argument '{}': expected an integer, got '{}'", name, value->type_name());
  }
  return value->integer();
}

bool Arguments::truth_or(size_t index, std::string_view name, bool fallback) const {
  const Value* value = find(index, name);
  return value ? value->truthy() : fallback;
}

void Arguments::expect_at_most(size_t count) const {
  if (positional.size() + named.size() > count) {
    fail("expected at most {} arguments, got {}", count, positional.size() + named.size());
  }
}

bool is_function(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

Value call_function(std::string_view name, const Arguments& arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "namespace") return Value::name_space(named_values(arguments));
  if (name == "dict") return Value(named_values(arguments));
  if (name == "strftime_now") return strftime_now(arguments);
  if (name == "raise_exception") {
    throw TemplateError{
        make_error(ErrorCode::kInvalidArgument, "{}", arguments.require(0, "message").text())};
  }
  fail("'{}' is not a function", name);
}

Value get_attribute(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kUndefined:
      fail("'{}' is undefined", object.undefined_name());
    case Kind::kDict:
      if (is_dict_method(name)) fail("method '{}' of a dict is not called", name);
      [[fallthrough]];
    case Kind::kNamespace:
      if (const Value* value = object.dict().find(name)) return *value;
      [[fallthrough]];
    default:
      return Value::undefined(std::string(name));
  }
}

Value get_item(const Value& object, const Value& key) {
  if (object.is(Kind::kUndefined)) fail("'{}' is undefined", object.undefined_name());
  if (key.is(Kind::kString)) {
    if (object.is(Kind::kDict) || object.is(Kind::kNamespace)) {
      if (const Value* value = object.dict().find(key.string())) return *value;
    }
    return Value::undefined(key.string());
  }
  if (key.is(Kind::kInt) || key.is(Kind::kBool)) {
    if (object.is(Kind::kList)) {
      if (const auto at = position(key.integer(), object.list().size())) return object.list()[*at];
    } else if (object.is(Kind::kString)) {
      const auto pieces = code_points(object.string());
      if (const auto at = position(key.integer(), pieces.size()))
        return Value(std::string(pieces[*at]));
    }
  }
  return Value::undefined(key.text());
}

Value apply_binary(std::string_view name, const Value& a, const Value& b) {
  if (name == "~") return Value(a.text() + b.text());
  if (name == "+" && a.is(Kind::kString) && b.is(Kind::kString))
    return Value(a.string() + b.string());
  if (name == "+" && a.is(Kind::kList) && b.is(Kind::kList)) {
    Value::List list = a.list();
    list.insert(list.end(), b.list().begin(), b.list().end());
    return Value(std::move(list));
  }
  const auto is_sequence = [](const Value& v) { return v.is(Kind::kString) || v.is(Kind::kList); };
  if (name == "*" && is_sequence(a) && b.is(Kind::kInt)) return repeat(a, b.integer());
  if (name == "*" && is_sequence(b) && a.is(Kind::kInt)) return repeat(b, a.integer());
  for (const Value* operand : {&a, &b}) {
    if (operand->is(Kind::kUndefined)) fail("'{}' is undefined", operand->undefined_name());
  }
  if (!a.is_number() || !b.is_number()) {
    fail("operator '{}' does not work on '{}' and '{}'", name, a.type_name(), b.type_name());
  }
  if (name == "/" || name == "//" || name == "%") return divide(name, a, b);
  if (name == "**") return power(a, b);
  const bool real = a.is(Kind::kFloat) || b.is(Kind::kFloat);
  const double x = a.number();
  const double y = b.number();
  if (real) return Value(name == "+" ? x + y : name == "-" ? x - y : x * y);
  const auto with = [&](auto f) { return checked(f, a.integer(), b.integer()); };
  if (name == "+")
    return with([](int64_t p, int64_t q, int64_t* r) { return __builtin_add_overflow(p, q, r); });
  if (name == "-")
    return with([](int64_t p, int64_t q, int64_t* r) { return __builtin_sub_overflow(p, q, r); });
  return with([](int64_t p, int64_t q, int64_t* r) { return __builtin_mul_overflow(p, q, r); });
}

}  // namespace expertplex::chat
