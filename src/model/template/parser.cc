#include "model/template/parser.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "model/template/expression_parser.h"

namespace expertplex::chat {
namespace {

class Parser : public ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  std::vector<Statement> run() {
    auto body = block({});
    if (!at(TokenKind::kEnd)) refuse("unexpected {{% {} %}}", block_name());
    check_calls();
    return body;
  }

 private:
  std::vector<Statement> block(const std::set<std::string>& enders);
  Statement statement();
  Statement parse_if();
  Statement parse_for();
  Statement parse_set();
  Statement parse_macro();
  Statement parse_scope();
  std::string block_name() const {
    return at(TokenKind::kBlockBegin) && next().kind == TokenKind::kName ? next().value
                                                                         : std::string();
  }
  // Takes {% name.
  void open_block() {
    expect(TokenKind::kBlockBegin, "a tag");
    take_name("the name of a tag");
  }
  void close_block() { expect(TokenKind::kBlockEnd, "the end of the tag"); }
  void end_block(const char* name) {
    if (block_name() != name) refuse("expected {{% {} %}}", name);
    open_block();
    close_block();
  }

  int loop_depth_ = 0;
  bool in_macro_ = false;
};

std::vector<Statement> Parser::block(const std::set<std::string>& enders) {
  const Nesting guard(*this);
  std::vector<Statement> body;
  while (!at(TokenKind::kEnd)) {
    if (at(TokenKind::kText)) {
      Statement text;
      text.kind = StatementKind::kText;
      text.line = current().line;
      text.text = take().value;
      body.push_back(std::move(text));
    } else if (at(TokenKind::kOutputBegin)) {
      Statement output;
      output.kind = StatementKind::kOutput;
      output.line = take().line;
      output.expression = expression();
      expect(TokenKind::kOutputEnd, "}}");
      body.push_back(std::move(output));
    } else {
      const std::string name = block_name();
      if (enders.count(name)) break;
      if (name.rfind("end", 0) == 0 || name == "else" || name == "elif") break;
      body.push_back(statement());
    }
  }
  return body;
}

Statement Parser::statement() {
  const std::string name = block_name();
  const int line = current().line;
  Statement result;
  if (name == "if") {
    result = parse_if();
  } else if (name == "for") {
    result = parse_for();
  } else if (name == "set") {
    result = parse_set();
  } else if (name == "macro") {
    result = parse_macro();
  } else if (name == "generation") {
    result = parse_scope();
  } else if (name == "break" || name == "continue") {
    if (loop_depth_ == 0) refuse("{} outside of a loop", name);
    open_block();
    close_block();
    result.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
  } else if (name.empty()) {
    refuse("expected the name of a tag");
  } else {
    unsupported(line, fmt::format("{{% {} %}}", name));
  }
  result.line = line;
  return result;
}

Statement Parser::parse_if() {
  Statement result;
  result.kind = StatementKind::kIf;
  while (true) {
    open_block();  // if, elif
    auto condition = expression();
    close_block();
    result.branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}));
    if (block_name() != "elif") break;
  }
  if (block_name() == "else") {
    open_block();
    close_block();
    result.branches.emplace_back(nullptr, block({"endif"}));
  }
  end_block("endif");
  return result;
}

Statement Parser::parse_for() {
  Statement result;
  result.kind = StatementKind::kFor;
  open_block();
  const bool parenthesized = take_operator("(");
  do {
    result.targets.push_back(take_target());
  } while (take_operator(","));
  if (parenthesized) expect_operator(")");
  if (!take_keyword("in")) refuse("expected 'in'");
  result.expression = expression_without_condition();
  if (take_keyword("if")) result.condition = expression();
  if (at_keyword("recursive")) unsupported(current().line, "a recursive loop");
  close_block();
  ++loop_depth_;
  result.body = block({"else", "endfor"});
  --loop_depth_;
  if (block_name() == "else") {
    open_block();
    close_block();
    result.alternative = block({"endfor"});
  }
  end_block("endfor");
  return result;
}

Statement Parser::parse_set() {
  Statement result;
  open_block();
  result.targets.push_back(take_target());
  if (take_operator(".")) result.attribute = take_name("an attribute");
  if (at_operator(",")) unsupported(current().line, "{% set %} of several names");
  if (at_operator("|")) unsupported(current().line, "a filter in {% set %}");
  if (take_operator("=")) {
    result.kind = StatementKind::kSet;
    result.expression = expression();
    if (at_operator(",")) unsupported(current().line, "a tuple without parentheses");
    close_block();
    return result;
  }
  if (!result.attribute.empty()) refuse("expected '='");
  result.kind = StatementKind::kSetBlock;
  close_block();
  result.body = block({"endset"});
  end_block("endset");
  return result;
}

Statement Parser::parse_macro() {
  Statement result;
  result.kind = StatementKind::kMacro;
  if (loop_depth_ > 0 || in_macro_) unsupported(current().line, "a macro inside a loop or macro");
  open_block();
  result.text = take_target();
  expect_operator("(");
  while (!at_operator(")")) {
    std::string name = take_name("a parameter");
    auto fallback = take_operator("=") ? expression() : nullptr;
    result.parameters.emplace_back(std::move(name), std::move(fallback));
    if (!take_operator(",")) break;
  }
  expect_operator(")");
  close_block();
  in_macro_ = true;
  result.body = block({"endmacro"});
  in_macro_ = false;
  end_block("endmacro");
  return result;
}

Statement Parser::parse_scope() {
  Statement result;
  result.kind = StatementKind::kScope;
  open_block();
  close_block();
  result.body = block({"endgeneration"});
  end_block("endgeneration");
  return result;
}

}  // namespace

Result<std::vector<Statement>> parse_template(std::string_view source) {
  EXPERTPLEX_ASSIGN(auto tokens, tokenize(source));
  try {
    return Parser(std::move(tokens)).run();
  } catch (const TemplateError& e) {
    return e.error;
  }
}

}  // namespace expertplex::chat
