// Statements. Expressions are in evaluator.cc.
#include "model/template/interpreter.h"

#include <algorithm>

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;

// The variable `loop` of an iteration.
Value loop_variable(const Value::List& items, size_t index) {
  const auto count = static_cast<int64_t>(items.size());
  const auto at = static_cast<int64_t>(index);
  Dict loop;
  loop.entries = {
      {"index", Value(at + 1)},
      {"index0", Value(at)},
      {"revindex", Value(count - at)},
      {"revindex0", Value(count - at - 1)},
      {"first", Value(index == 0)},
      {"last", Value(index + 1 == items.size())},
      {"length", Value(count)},
      {"depth", Value(int64_t{1})},  // loops do not recurse here
      {"depth0", Value(int64_t{0})},
      {"previtem", index > 0 ? items[index - 1] : Value::undefined("loop.previtem")},
      {"nextitem", index + 1 < items.size() ? items[index + 1] : Value::undefined("loop.nextitem")},
  };
  return Value(std::move(loop));
}

}  // namespace

std::string Interpreter::render(const std::vector<Statement>& statements) {
  run(statements);
  return std::move(output_);
}

void Interpreter::step() {
  if (++steps_ > kMaxSteps) fail("the template takes more than {} steps", kMaxSteps);
}

void Interpreter::write(std::string_view text) {
  output_ += text;
  if (output_.size() > kMaxOutputBytes) {
    fail("the template writes more than {} bytes", kMaxOutputBytes);
  }
}

Interpreter::Flow Interpreter::run(const std::vector<Statement>& statements) {
  for (const auto& statement : statements) {
    const Flow flow = run_one(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_one(const Statement& statement) {
  step();
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      return Flow::kNext;
    case StatementKind::kOutput:
      write(evaluate(*statement.expression).text());
      return Flow::kNext;
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kSet:
      assign(statement, evaluate(*statement.expression));
      return Flow::kNext;
    case StatementKind::kSetBlock:
      assign(statement, Value(capture(statement.body)));
      return Flow::kNext;
    case StatementKind::kMacro:
      scope_->variables.set(statement.text, Value::macro(&statement));
      return Flow::kNext;
    case StatementKind::kScope:
      return run(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    if (!condition || evaluate(*condition).truthy()) return run(body);
  }
  return Flow::kNext;
}

// The items of a loop, those that its `if` drops left out.
Value::List Interpreter::loop_items(const Statement& statement) {
  const Value sequence = evaluate(*statement.expression);
  auto items = iterate(sequence);
  if (!statement.condition) return items;
  Value::List kept;
  Scope inner{{}, scope_};
  scope_ = &inner;
  for (auto& item : items) {
    bind_targets(statement, item);
    if (evaluate(*statement.condition).truthy()) kept.push_back(std::move(item));
  }
  scope_ = inner.outer;
  return kept;
}

void Interpreter::bind_targets(const Statement& statement, const Value& item) {
  const auto& targets = statement.targets;
  if (targets.size() == 1) return scope_->variables.set(targets[0], item);
  if (!item.is(Kind::kList) || item.list().size() != targets.size()) {
    fail("line {}: expected items of {} values", statement.line, targets.size());
  }
  for (size_t i = 0; i < targets.size(); ++i) scope_->variables.set(targets[i], item.list()[i]);
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  const auto items = loop_items(statement);
  if (items.empty()) return run(statement.alternative);
  Scope* const outer = scope_;
  for (size_t i = 0; i < items.size(); ++i) {
    step();
    Scope inner{{}, outer};
    scope_ = &inner;
    scope_->variables.set("loop", loop_variable(items, i));
    bind_targets(statement, items[i]);
    const Flow flow = run(statement.body);
    scope_ = outer;
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Interpreter::assign(const Statement& statement, Value value) {
  const std::string& name = statement.targets[0];
  if (statement.attribute.empty()) return scope_->variables.set(name, std::move(value));
  Value target = look_up(name);
  if (!target.is(Kind::kNamespace)) {
    fail("line {}: '{}': only a namespace's attributes can be set, got '{}'", statement.line, name,
         target.type_name());
  }
  if (value.is(Kind::kNamespace)) fail("line {}: a namespace cannot be stored", statement.line);
  target.mutable_dict().set(statement.attribute, std::move(value));
}

// What `body` writes, instead of writing it.
std::string Interpreter::capture(const std::vector<Statement>& body) {
  std::string saved = std::move(output_);
  output_.clear();
  run(body);
  std::string captured = std::move(output_);
  output_ = std::move(saved);
  return captured;
}

Value Interpreter::call_macro(const Statement& macro, const Arguments& arguments) {
  if (call_depth_ >= kMaxCallDepth)
    fail("macros call each other deeper than {} levels", kMaxCallDepth);
  const auto& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    fail("macro '{}': expected at most {} arguments, got {}", macro.text, parameters.size(),
         arguments.positional.size());
  }
  for (const auto& [name, value] : arguments.named) {
    const auto known = [&](const auto& parameter) { return parameter.first == name; };
    if (std::none_of(parameters.begin(), parameters.end(), known)) {
      fail("macro '{}' has no parameter '{}'", macro.text, name);
    }
  }
  Scope inner{{}, &top_};
  Scope* const caller = scope_;
  scope_ = &inner;
  ++call_depth_;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, fallback] = parameters[i];
    const Value* given = arguments.find(i, name);
    inner.variables.set(name, given      ? *given
                              : fallback ? evaluate(*fallback)
                                         : Value::undefined(name));
  }
  std::string text = capture(macro.body);
  --call_depth_;
  scope_ = caller;
  return Value(std::move(text));
}

}  // namespace expertplex::chat
