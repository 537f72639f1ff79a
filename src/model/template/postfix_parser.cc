// What may follow a value: attributes, subscripts, calls, filters and tests.
#include <algorithm>

#include "model/template/builtins.h"
#include "model/template/expression_parser.h"

namespace expertplex::chat {
ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (at_operator(".") || at_operator("[") || at_operator("(")) {
    if (at_operator("[")) {
      value = parse_subscript(std::move(value));
    } else if (take_operator(".")) {
      auto result = make(ExpressionKind::kAttribute);
      if (at(TokenKind::kInteger)) {
        result->kind = ExpressionKind::kSubscript;
        adopt(*result, std::move(value));
        adopt(*result, parse_number());
      } else {
        result->name = take_name("an attribute");
        adopt(*result, std::move(value));
      }
      value = std::move(result);
    } else {
      auto call = make(ExpressionKind::kCall);
      if (value->kind == ExpressionKind::kName) {
        called_.emplace_back(value->name, call->line);
      } else if (value->kind == ExpressionKind::kAttribute && !is_method(value->name)) {
        unsupported(call->line, fmt::format("method '{}'", value->name));
      } else if (value->kind != ExpressionKind::kAttribute) {
        unsupported(call->line, "a call of this");
      }
      adopt(*call, std::move(value));
      parse_arguments(*call);
      value = std::move(call);
    }
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  take();
  auto result = make(ExpressionKind::kSubscript);
  adopt(*result, std::move(value));
  if (!at_operator(":")) adopt(*result, expression());
  if (at_operator(":")) {
    result->kind = ExpressionKind::kSlice;
    if (result->operands.size() == 1) adopt(*result, nullptr);
    while (result->operands.size() < 4 && take_operator(":")) {
      const bool empty = at_operator(":") || at_operator("]");
      adopt(*result, empty ? nullptr : expression());
    }
    result->operands.resize(4);
  }
  expect_operator("]");
  return result;
}

// ( positional..., name=value... )
void ExpressionParser::parse_arguments(Expression& call) {
  expect_operator("(");
  while (!at_operator(")")) {
    if (at_operator("*") || at_operator("**")) unsupported(current().line, "an unpacked argument");
    const bool named =
        at(TokenKind::kName) && next().kind == TokenKind::kOperator && next().value == "=";
    if (named) {
      std::string name = take().value;
      take();
      auto value = expression();
      call.height = std::max(call.height, value->height + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) refuse("a positional argument after a named one");
      adopt(call, expression());
    }
    if (!take_operator(",")) break;
  }
  expect_operator(")");
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value) {
  while (true) {
    if (take_operator("|")) {
      auto filter = make(ExpressionKind::kFilter);
      filter->name = take_name("a filter");
      if (!is_filter(filter->name))
        unsupported(filter->line, fmt::format("filter '{}'", filter->name));
      adopt(*filter, std::move(value));
      if (at_operator("(")) parse_arguments(*filter);
      value = std::move(filter);
    } else if (take_keyword("is")) {
      value = parse_test(std::move(value));
    } else if (at_operator("(") || at_operator(".") || at_operator("[")) {
      unsupported(current().line, "a postfix of a filter or test without parentheses");
    } else {
      return value;
    }
  }
}

// A test's one argument may stand without parentheses: `x is divisibleby 3`.
bool ExpressionParser::begins_test_argument() const {
  switch (current().kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kName:
      return !at_keyword("else") && !at_keyword("or") && !at_keyword("and") && !at_keyword("if") &&
             !at_keyword("is") && !at_keyword("in") && !at_keyword("not");
    default:
      return at_operator("[") || at_operator("{");
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  const bool negated = take_keyword("not");
  auto test = make(ExpressionKind::kTest);
  test->name = take_name("a test");
  if (!is_test(test->name)) unsupported(test->line, fmt::format("test '{}'", test->name));
  adopt(*test, std::move(value));
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (begins_test_argument()) {
    adopt(*test, parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  auto result = make(ExpressionKind::kNot);
  adopt(*result, std::move(test));
  return result;
}

}  // namespace expertplex::chat
