#include "model/template/expression_parser.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "model/template/builtins.h"

namespace expertplex::chat {
namespace {

// Bounds of recursion: a level of nesting costs a dozen stack frames here, a level of the tree one
// or two in the interpreter (a chain of operators is as high as it is long).
constexpr int kMaxNesting = 200;
constexpr int kMaxHeight = 400;

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.depth_ >= kMaxNesting) parser_.refuse("nested deeper than {} levels", kMaxNesting);
  ++parser_.depth_;
}

void ExpressionParser::unsupported(int line, std::string_view what) {
  throw TemplateError{
      make_error(ErrorCode::kUnsupported, "line {}: {} is not supported", line, what)};
}

Token ExpressionParser::take() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::take_operator(std::string_view symbol) {
  if (!at_operator(symbol)) return false;
  take();
  return true;
}

bool ExpressionParser::take_keyword(std::string_view word) {
  if (!at_keyword(word)) return false;
  take();
  return true;
}

std::string ExpressionParser::take_name(const char* what) {
  if (!at(TokenKind::kName)) refuse("expected {}, got '{}'", what, current().value);
  return take().value;
}

std::string ExpressionParser::take_target() {
  std::string name = take_name("a name");
  assigned_.insert(name);
  return name;
}

void ExpressionParser::expect(TokenKind kind, const char* what) {
  if (!at(kind)) refuse("expected {}, got '{}'", what, current().value);
  take();
}

void ExpressionParser::expect_operator(std::string_view symbol) {
  if (!take_operator(symbol)) refuse("expected '{}', got '{}'", symbol, current().value);
}

void ExpressionParser::check_calls() const {
  for (const auto& [name, line] : called_) {
    if (!is_function(name) && !assigned_.count(name)) {
      unsupported(line, fmt::format("function '{}'", name));
    }
  }
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::string name) const {
  auto result = std::make_unique<Expression>();
  result->kind = kind;
  result->line = current().line;
  result->name = std::move(name);
  return result;
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) const {
  if (child) parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) refuse("an expression of more than {} levels", kMaxHeight);
  parent.operands.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::combine(ExpressionKind kind, std::string name, ExpressionPtr a,
                                        ExpressionPtr b) const {
  auto result = make(kind, std::move(name));
  adopt(*result, std::move(a));
  adopt(*result, std::move(b));
  return result;
}

ExpressionPtr ExpressionParser::expression() {
  const Nesting guard(*this);
  auto value = expression_without_condition();
  while (take_keyword("if")) {
    auto result = make(ExpressionKind::kConditional);
    adopt(*result, std::move(value));
    adopt(*result, expression_without_condition());
    adopt(*result, take_keyword("else") ? expression() : nullptr);
    value = std::move(result);
  }
  return value;
}

ExpressionPtr ExpressionParser::expression_without_condition() {
  auto value = parse_and();
  while (take_keyword("or")) {
    value = combine(ExpressionKind::kOr, {}, std::move(value), parse_and());
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_and() {
  auto value = parse_not();
  while (take_keyword("and")) {
    value = combine(ExpressionKind::kAnd, {}, std::move(value), parse_not());
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_not() {
  const Nesting guard(*this);
  if (!take_keyword("not")) return parse_compare();
  auto result = make(ExpressionKind::kNot);
  adopt(*result, parse_not());
  return result;
}

ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::array<std::string_view, 6> kSymbols = {"==", "!=", "<", "<=", ">", ">="};
  auto first = parse_sum();
  auto result = make(ExpressionKind::kCompare);
  while (true) {
    if (at(TokenKind::kOperator) &&
        std::find(kSymbols.begin(), kSymbols.end(), current().value) != kSymbols.end()) {
      result->comparisons.push_back(take().value);
    } else if (take_keyword("in")) {
      result->comparisons.push_back("in");
    } else if (at_keyword("not") && next().kind == TokenKind::kName && next().value == "in") {
      take();
      take();
      result->comparisons.push_back("not in");
    } else {
      break;
    }
    if (result->operands.empty()) adopt(*result, std::move(first));
    adopt(*result, parse_sum());
  }
  return result->operands.empty() ? std::move(first) : std::move(result);
}

ExpressionPtr ExpressionParser::parse_sum() {
  auto value = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    std::string symbol = take().value;
    value = combine(ExpressionKind::kBinary, std::move(symbol), std::move(value),
                    parse_concatenation());
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  auto value = parse_product();
  while (take_operator("~")) {
    value = combine(ExpressionKind::kBinary, "~", std::move(value), parse_product());
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_product() {
  auto value = parse_power();
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    std::string symbol = take().value;
    value = combine(ExpressionKind::kBinary, std::move(symbol), std::move(value), parse_power());
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_power() {
  auto value = parse_unary(true);
  while (take_operator("**")) {
    value = combine(ExpressionKind::kBinary, "**", std::move(value), parse_unary(true));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting guard(*this);
  ExpressionPtr value;
  if (take_operator("-")) {
    value = make(ExpressionKind::kNegate);
    adopt(*value, parse_unary(false));
  } else if (take_operator("+")) {
    value = parse_unary(false);
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filter ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    case TokenKind::kString: {
      auto result = make(ExpressionKind::kLiteral);
      std::string text;
      while (at(TokenKind::kString)) text += take().value;  // adjacent strings join
      result->literal = Value(std::move(text));
      return result;
    }
    default:
      break;
  }
  if (at_operator("(")) return parse_parenthesis();
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  refuse("expected a value, got '{}'", current().value);
}

ExpressionPtr ExpressionParser::parse_name() {
  auto result = make(ExpressionKind::kName, take().value);
  const std::string& name = result->name;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    result->literal = Value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    result->literal = Value::none();
  } else {
    return result;
  }
  result->kind = ExpressionKind::kLiteral;
  return result;
}

ExpressionPtr ExpressionParser::parse_number() {
  auto result = make(ExpressionKind::kLiteral);
  const Token token = take();
  result->literal =
      token.kind == TokenKind::kInteger
          ? Value(static_cast<int64_t>(std::strtoll(token.value.c_str(), nullptr, 10)))
          : Value(std::strtod(token.value.c_str(), nullptr));
  return result;
}

// (x), or a tuple, which is a list here.
ExpressionPtr ExpressionParser::parse_parenthesis() {
  take();
  auto tuple = make(ExpressionKind::kList);
  if (take_operator(")")) return tuple;
  auto first = expression();
  if (take_operator(")")) return first;
  adopt(*tuple, std::move(first));
  while (take_operator(",")) {
    if (at_operator(")")) break;
    adopt(*tuple, expression());
  }
  expect_operator(")");
  return tuple;
}

ExpressionPtr ExpressionParser::parse_list() {
  take();
  auto list = make(ExpressionKind::kList);
  while (!at_operator("]")) {
    adopt(*list, expression());
    if (!take_operator(",")) break;
  }
  expect_operator("]");
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  take();
  auto dict = make(ExpressionKind::kDict);
  while (!at_operator("}")) {
    adopt(*dict, expression());
    expect_operator(":");
    adopt(*dict, expression());
    if (!take_operator(",")) break;
  }
  expect_operator("}");
  return dict;
}

}  // namespace expertplex::chat
