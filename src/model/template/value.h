// Values of the template language: what Python's None, bool, int, float, str, list and dict are to
// Jinja, plus undefined, namespaces and macros. Text forms follow Python (str, repr, json.dumps).
//
// Inside src/model/template faults are thrown as TemplateError and caught by ChatTemplate; none
// escapes.
//
// Thread rules: values that come from parsing are shared read-only; all others belong to one
// rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace expertplex::chat {

struct TemplateError {
  Error error;
  bool located = false;  // the message says where
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...)};
}

class Value;
struct Statement;

struct Dict {
  std::vector<std::pair<std::string, Value>> entries;  // in order of insertion
  const Value* find(std::string_view key) const;
  void set(std::string key, Value value);
};

class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace,
    kMacro
  };
  using List = std::vector<Value>;

  Value() = default;  // undefined
  static Value none();
  static Value undefined(std::string name);  // remembers what was not defined, for messages
  static Value macro(const Statement* definition);
  static Value name_space(Dict dict);
  explicit Value(bool b) : kind_(Kind::kBool), int_(b) {}
  explicit Value(int64_t i) : kind_(Kind::kInt), int_(i) {}
  explicit Value(double f) : kind_(Kind::kFloat), float_(f) {}
  explicit Value(std::string s);
  explicit Value(const char* s) : Value(std::string(s)) {}
  explicit Value(List list);
  explicit Value(Dict dict);
  template <typename AnyJson>
  static Value from_json(const AnyJson& json);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return is(Kind::kInt) || is(Kind::kFloat) || is(Kind::kBool); }
  // REQUIRES of the following: the kind (or, for integer and number, is_number()).
  int64_t integer() const { return int_; }
  double number() const { return is(Kind::kFloat) ? float_ : static_cast<double>(int_); }
  const std::string& string() const { return *string_; }
  const List& list() const { return *list_; }
  const Dict& dict() const { return *dict_; }
  Dict& mutable_dict() { return *dict_; }  // namespaces only
  const Statement* definition() const { return macro_; }

  // A value nests at most kMaxDepth deep and weighs (elements and string bytes in all, shared ones
  // counted each time) at most kMaxWeight; what would go beyond fails, so that every walk over a
  // value is short. Namespaces cannot be stored in other values.
  static constexpr int kMaxDepth = 200;
  static constexpr int64_t kMaxWeight = int64_t{64} << 20;
  int depth() const { return depth_; }
  int64_t weight() const { return weight_; }

  bool truthy() const;
  std::string text() const;       // str(x)
  std::string repr() const;       // repr(x)
  const char* type_name() const;  // as Python calls it
  const std::string& undefined_name() const;

 private:
  void measure(const Value& part);

  Kind kind_ = Kind::kUndefined;
  int depth_ = 0;
  int64_t weight_ = 1;
  int64_t int_ = 0;
  double float_ = 0;
  const Statement* macro_ = nullptr;
  std::shared_ptr<const std::string> string_;
  std::shared_ptr<const List> list_;
  std::shared_ptr<Dict> dict_;
};

bool equal(const Value& a, const Value& b);
// Negative, zero, positive; fails for what Python does not order.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  // -1: on one line; else each item begins a line, after item_separator
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

// Lists as they are, strings by code point, dicts by key, undefined as nothing; fails for the rest.
Value::List iterate(const Value& value);

template <typename AnyJson>
Value Value::from_json(const AnyJson& json) {
  using Type = nlohmann::detail::value_t;
  switch (json.type()) {
    case Type::null:
      return none();
    case Type::boolean:
      return Value(json.template get<bool>());
    case Type::number_integer:
      return Value(json.template get<int64_t>());
    case Type::number_unsigned: {
      const auto number = json.template get<uint64_t>();
      return number > static_cast<uint64_t>(INT64_MAX) ? Value(static_cast<double>(number))
                                                       : Value(static_cast<int64_t>(number));
    }
    case Type::number_float:
      return Value(json.template get<double>());
    case Type::string:
      return Value(json.template get<std::string>());
    case Type::array: {
      List list;
      list.reserve(json.size());
      for (const auto& item : json) list.push_back(from_json(item));
      return Value(std::move(list));
    }
    case Type::object: {
      Dict dict;
      for (auto it = json.begin(); it != json.end(); ++it) {
        dict.entries.emplace_back(it.key(), from_json(it.value()));
      }
      return Value(std::move(dict));
    }
    default:
      return Value();
  }
}

}  // namespace expertplex::chat
