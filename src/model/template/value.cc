#include "model/template/value.h"

#include <algorithm>

#include "model/template/text.h"

namespace expertplex::chat {

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(std::string key, Value value) {
  for (auto& entry : entries) {
    if (entry.first == key) {
      entry.second = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Value::Value(std::string s)
    : kind_(Kind::kString), string_(std::make_shared<const std::string>(std::move(s))) {
  weight_ += static_cast<int64_t>(string_->size());
  if (weight_ > kMaxWeight) fail("a string grew beyond {} bytes", kMaxWeight);
}

Value::Value(List list) : kind_(Kind::kList), list_(std::make_shared<const List>(std::move(list))) {
  for (const auto& item : *list_) measure(item);
}

Value::Value(Dict dict) : kind_(Kind::kDict), dict_(std::make_shared<Dict>(std::move(dict))) {
  for (const auto& entry : dict_->entries) measure(entry.second);
}

void Value::measure(const Value& part) {
  if (part.is(Kind::kNamespace)) fail("a namespace cannot be stored in another value");
  depth_ = std::max(depth_, part.depth_ + 1);
  weight_ += part.weight_;
  if (depth_ > kMaxDepth) fail("a value is nested deeper than {} levels", kMaxDepth);
  if (weight_ > kMaxWeight) fail("a value grew beyond {} elements", kMaxWeight);
}

Value Value::none() {
  Value value;
  value.kind_ = Kind::kNone;
  return value;
}

Value Value::undefined(std::string name) {
  Value value;
  value.string_ = std::make_shared<const std::string>(std::move(name));
  return value;
}

Value Value::macro(const Statement* definition) {
  Value value;
  value.kind_ = Kind::kMacro;
  value.macro_ = definition;
  return value;
}

Value Value::name_space(Dict dict) {
  Value value(std::move(dict));
  value.kind_ = Kind::kNamespace;
  return value;
}

const std::string& Value::undefined_name() const {
  static const std::string kUnnamed = "value";
  return string_ ? *string_ : kUnnamed;
}

bool Value::truthy() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kString:
      return !string_->empty();
    case Kind::kList:
      return !list_->empty();
    case Kind::kDict:
      return !dict_->entries.empty();
    case Kind::kNamespace:
    case Kind::kMacro:
      return true;
  }
  return false;
}

const char* Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kMacro:
      return "macro";
  }
  return "?";
}

std::string Value::text() const {
  if (is(Kind::kString)) return *string_;
  return is(Kind::kUndefined) ? std::string() : repr();
}

std::string Value::repr() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return int_ ? "True" : "False";
    case Kind::kInt:
      return std::to_string(int_);
    case Kind::kFloat:
      return python_float(float_);
    case Kind::kString:
      return python_string(*string_);
    case Kind::kList: {
      std::string out = "[";
      for (const auto& item : *list_) {
        if (out.size() > 1) out += ", ";
        out += item.repr();
      }
      return out += "]";
    }
    case Kind::kDict: {
      std::string out = "{";
      for (const auto& [key, value] : dict_->entries) {
        if (out.size() > 1) out += ", ";
        out += python_string(key) + ": " + value.repr();
      }
      return out += "}";
    }
    case Kind::kNamespace:
    case Kind::kMacro:
      fail("a {} has no text", type_name());
  }
  return {};
}

bool equal(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.string() == b.string();
    case Kind::kList:
      return std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), equal);
    case Kind::kDict: {
      if (a.dict().entries.size() != b.dict().entries.size()) return false;
      return std::all_of(a.dict().entries.begin(), a.dict().entries.end(), [&](const auto& entry) {
        const Value* other = b.dict().find(entry.first);
        return other && equal(entry.second, *other);
      });
    }
    case Kind::kNamespace:
      return &a.dict() == &b.dict();
    case Kind::kMacro:
      return a.definition() == b.definition();
    default:
      return false;
  }
}

int compare(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) {
      return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    }
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) return a.string().compare(b.string());
  if (a.is(Kind::kList) && b.is(Kind::kList)) {
    for (size_t i = 0; i < std::min(a.list().size(), b.list().size()); ++i) {
      if (!equal(a.list()[i], b.list()[i])) return compare(a.list()[i], b.list()[i]);
    }
    return a.list().size() < b.list().size() ? -1 : a.list().size() > b.list().size();
  }
  fail("'{}' and '{}' cannot be ordered", a.type_name(), b.type_name());
}

bool contains(const Value& container, const Value& item) {
  using Kind = Value::Kind;
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is(Kind::kString)) fail("'in' a string needs a string, got '{}'", item.type_name());
      return container.string().find(item.string()) != std::string::npos;
    case Kind::kList:
      return std::any_of(container.list().begin(), container.list().end(),
                         [&](const Value& one) { return equal(one, item); });
    case Kind::kDict:
      return item.is(Kind::kString) && container.dict().find(item.string());
    case Kind::kUndefined:
      return false;
    default:
      fail("'{}' is not a container", container.type_name());
  }
}

Value::List iterate(const Value& value) {
  using Kind = Value::Kind;
  Value::List items;
  switch (value.kind()) {
    case Kind::kList:
      return value.list();
    case Kind::kString:
      for (const auto piece : code_points(value.string())) items.emplace_back(std::string(piece));
      return items;
    case Kind::kDict:
      for (const auto& entry : value.dict().entries) items.emplace_back(entry.first);
      return items;
    case Kind::kUndefined:
      return items;
    default:
      fail("'{}' cannot be iterated", value.type_name());
  }
}

namespace {

void write_json(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  using Kind = Value::Kind;
  const auto begin_item = [&](bool first, int at_depth) {
    if (!first) out += style.item_separator;
    if (style.indent >= 0) {
      out += '\n' + std::string(static_cast<size_t>(style.indent * at_depth), ' ');
    }
  };
  const auto end_items = [&](bool any, char bracket) {
    if (any && style.indent >= 0) {
      out += '\n' + std::string(static_cast<size_t>(style.indent * depth), ' ');
    }
    out += bracket;
  };
  switch (value.kind()) {
    case Kind::kNone:
      out += "null";
      return;
    case Kind::kBool:
      out += value.integer() ? "true" : "false";
      return;
    case Kind::kInt:
      out += std::to_string(value.integer());
      return;
    case Kind::kFloat: {
      const std::string text = python_float(value.number());
      out += text == "nan"    ? "NaN"
             : text == "inf"  ? "Infinity"
             : text == "-inf" ? "-Infinity"
                              : text;
      return;
    }
    case Kind::kString:
      out += json_string(value.string(), style.ensure_ascii);
      return;
    case Kind::kList: {
      out += '[';
      bool first = true;
      for (const auto& item : value.list()) {
        begin_item(first, depth + 1);
        first = false;
        write_json(item, style, depth + 1, out);
      }
      end_items(!first, ']');
      return;
    }
    case Kind::kDict: {
      out += '{';
      auto entries = value.dict().entries;
      if (style.sort_keys) {
        std::stable_sort(entries.begin(), entries.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
      }
      bool first = true;
      for (const auto& [key, item] : entries) {
        begin_item(first, depth + 1);
        first = false;
        out += json_string(key, style.ensure_ascii) + style.key_separator;
        write_json(item, style, depth + 1, out);
      }
      end_items(!first, '}');
      return;
    }
    default:
      fail("a value of type '{}' cannot be written as JSON", value.type_name());
  }
}

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  write_json(value, style, 0, out);
  return out;
}

}  // namespace expertplex::chat
