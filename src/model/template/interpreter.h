// Walks a parsed template and writes its text. One Interpreter per rendering.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "model/template/builtins.h"
#include "model/template/syntax.h"

namespace expertplex::chat {

// Bounds of one rendering.
constexpr int64_t kMaxSteps = 2'000'000;  // statements and expressions
constexpr size_t kMaxOutputBytes = size_t{64} << 20;
constexpr int64_t kMaxCopiedBytes = int64_t{1} << 29;  // by all expressions together
constexpr int kMaxCallDepth = 16;                      // of macros

class Interpreter {
 public:
  explicit Interpreter(Dict variables) : top_{std::move(variables), nullptr}, scope_(&top_) {}

  // Fails by TemplateError; the message of a fault of the template begins with its line.
  std::string render(const std::vector<Statement>& statements);

 private:
  // Variables of a block; a name that is not here is looked up outside. Loops and macros make one.
  struct Scope {
    Dict variables;
    Scope* outer = nullptr;
  };
  enum class Flow { kNext, kBreak, kContinue };

  Flow run(const std::vector<Statement>& statements);
  Flow run_one(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Value::List loop_items(const Statement& statement);
  void bind_targets(const Statement& statement, const Value& item);
  void assign(const Statement& statement, Value value);
  std::string capture(const std::vector<Statement>& body);
  void write(std::string_view text);

  Value evaluate(const Expression& expression);
  Value evaluate_here(const Expression& expression);
  Value look_up(const std::string& name) const;
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value call_macro(const Statement& macro, const Arguments& arguments);
  bool evaluate_compare(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Arguments evaluate_arguments(const Expression& expression);
  void step();

  Scope top_;
  Scope* scope_;
  std::string output_;
  int64_t steps_ = 0;
  int64_t copied_bytes_ = 0;
  int call_depth_ = 0;
};

}  // namespace expertplex::chat
