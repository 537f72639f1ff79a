// Expressions.
#include <algorithm>

#include "model/template/interpreter.h"
#include "model/template/text.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;

// Start, stop and step of a Python slice over `size` items, cut to what is there.
struct SliceRange {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const auto bound = [&](const Value& value, int64_t fallback, int64_t low, int64_t high) {
    if (value.is(Kind::kUndefined) || value.is(Kind::kNone)) return fallback;
    if (!value.is(Kind::kInt) && !value.is(Kind::kBool)) {
      fail("a slice needs integers, got '{}'", value.type_name());
    }
    const int64_t index = value.integer() < 0 ? value.integer() + size : value.integer();
    return std::clamp(index, low, high);
  };
  SliceRange range;
  range.step = bound(step, 1, INT64_MIN / 4, INT64_MAX / 4);
  if (step.is(Kind::kInt)) range.step = std::clamp(step.integer(), -size - 1, size + 1);
  if (range.step == 0) fail("a slice's step must not be zero");
  const bool forwards = range.step > 0;
  range.start =
      bound(start, forwards ? 0 : size - 1, forwards ? 0 : -1, forwards ? size : size - 1);
  range.stop = bound(stop, forwards ? size : -1, forwards ? 0 : -1, forwards ? size : size - 1);
  return range;
}

template <typename Items, typename F>
void for_each_in(const Items& items, const SliceRange& range, F f) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    f(items[static_cast<size_t>(i)]);
  }
}

}  // namespace

// Adds the line to faults, once.
Value Interpreter::evaluate(const Expression& expression) {
  step();
  try {
    Value value = evaluate_here(expression);
    if (value.is(Kind::kString) && expression.kind != ExpressionKind::kName) {
      copied_bytes_ += static_cast<int64_t>(value.string().size());
      if (copied_bytes_ > kMaxCopiedBytes) fail("the template copies too much text");
    }
    return value;
  } catch (TemplateError& e) {
    const bool raised = expression.kind == ExpressionKind::kCall &&
                        expression.operands[0]->name == "raise_exception";
    if (!raised && !e.located) e.error = e.error.in(fmt::format("line {}", expression.line));
    e.located = true;
    throw;
  }
}

Value Interpreter::look_up(const std::string& name) const {
  for (const Scope* scope = scope_; scope; scope = scope->outer) {
    if (const Value* value = scope->variables.find(name)) return *value;
  }
  return Value::undefined(name);
}

Value Interpreter::evaluate_here(const Expression& e) {
  const auto operand = [&](size_t i) { return evaluate(*e.operands[i]); };
  switch (e.kind) {
    case ExpressionKind::kLiteral:
      return e.literal;
    case ExpressionKind::kName:
      return look_up(e.name);
    case ExpressionKind::kAttribute:
      return get_attribute(operand(0), e.name);
    case ExpressionKind::kSubscript: {
      const Value object = operand(0);
      return get_item(object, operand(1));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(e);
    case ExpressionKind::kCall:
      return evaluate_call(e);
    case ExpressionKind::kFilter: {
      const Value value = operand(0);
      return call_filter(e.name, value, evaluate_arguments(e));
    }
    case ExpressionKind::kTest: {
      const Value value = operand(0);
      return Value(call_test(e.name, value, evaluate_arguments(e)));
    }
    case ExpressionKind::kNot:
      return Value(!operand(0).truthy());
    case ExpressionKind::kNegate:
      return apply_binary("-", Value(int64_t{0}), operand(0));
    case ExpressionKind::kBinary: {
      const Value left = operand(0);
      return apply_binary(e.name, left, operand(1));
    }
    case ExpressionKind::kCompare:
      return Value(evaluate_compare(e));
    case ExpressionKind::kAnd: {
      Value left = operand(0);
      return left.truthy() ? operand(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = operand(0);
      return left.truthy() ? left : operand(1);
    }
    case ExpressionKind::kConditional:
      if (operand(1).truthy()) return operand(0);
      return e.operands[2] ? operand(2) : Value::undefined("the missing else");
    case ExpressionKind::kList: {
      Value::List list;
      for (const auto& item : e.operands) list.push_back(evaluate(*item));
      return Value(std::move(list));
    }
    case ExpressionKind::kDict:
      return evaluate_dict(e);
  }
  return Value();
}

Value Interpreter::evaluate_dict(const Expression& e) {
  Dict dict;
  for (size_t i = 0; i + 1 < e.operands.size(); i += 2) {
    const Value key = evaluate(*e.operands[i]);
    if (!key.is(Kind::kString)) fail("a dict's keys are strings here, got '{}'", key.type_name());
    dict.set(key.string(), evaluate(*e.operands[i + 1]));
  }
  return Value(std::move(dict));
}

bool Interpreter::evaluate_compare(const Expression& e) {
  Value left = evaluate(*e.operands[0]);
  for (size_t i = 0; i < e.comparisons.size(); ++i) {
    Value right = evaluate(*e.operands[i + 1]);
    const std::string& symbol = e.comparisons[i];
    bool holds = false;
    if (symbol == "==") {
      holds = equal(left, right);
    } else if (symbol == "!=") {
      holds = !equal(left, right);
    } else if (symbol == "in") {
      holds = contains(right, left);
    } else if (symbol == "not in") {
      holds = !contains(right, left);
    } else {
      const int order = compare(left, right);
      holds = symbol == "<"    ? order < 0
              : symbol == "<=" ? order <= 0
              : symbol == ">"  ? order > 0
                               : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Expression& e) {
  const Value object = evaluate(*e.operands[0]);
  const auto part = [&](size_t i) { return e.operands[i] ? evaluate(*e.operands[i]) : Value(); };
  const Value start = part(1);
  const Value stop = part(2);
  const Value step_value = part(3);
  const auto range = [&](size_t size) {
    return slice_range(start, stop, step_value, static_cast<int64_t>(size));
  };
  if (object.is(Kind::kList)) {
    Value::List list;
    for_each_in(object.list(), range(object.list().size()),
                [&](const Value& item) { list.push_back(item); });
    return Value(std::move(list));
  }
  if (object.is(Kind::kString)) {
    const auto pieces = code_points(object.string());
    std::string text;
    for_each_in(pieces, range(pieces.size()), [&](std::string_view piece) { text += piece; });
    return Value(std::move(text));
  }
  if (object.is(Kind::kUndefined)) fail("'{}' is undefined", object.undefined_name());
  fail("'{}' cannot be sliced", object.type_name());
}

Arguments Interpreter::evaluate_arguments(const Expression& e) {
  Arguments arguments;
  for (size_t i = 1; i < e.operands.size(); ++i)
    arguments.positional.push_back(evaluate(*e.operands[i]));
  for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& e) {
  const Expression& callee = *e.operands[0];
  if (callee.kind == ExpressionKind::kAttribute) {
    const Value object = evaluate(*callee.operands[0]);
    return call_method(callee.name, object, evaluate_arguments(e));
  }
  const Value value = look_up(callee.name);
  if (value.is(Kind::kMacro)) return call_macro(*value.definition(), evaluate_arguments(e));
  if (!value.is(Kind::kUndefined))
    fail("'{}' is not a macro, but '{}'", callee.name, value.type_name());
  if (!is_function(callee.name)) fail("'{}' is undefined", callee.name);
  return call_function(callee.name, evaluate_arguments(e));
}

}  // namespace expertplex::chat
