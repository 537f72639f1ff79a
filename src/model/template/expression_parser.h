// The expression half of the parser: Jinja's precedence, from `a if b else c` down to literals.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "model/template/lexer.h"
#include "model/template/syntax.h"

namespace expertplex::chat {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Bounds recursion: alive while a nested construct is parsed.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("line {}: {}", current().line, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] static void unsupported(int line, std::string_view what);

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view symbol) const {
    return at(TokenKind::kOperator) && current().value == symbol;
  }
  bool at_keyword(std::string_view word) const {
    return at(TokenKind::kName) && current().value == word;
  }
  Token take();
  bool take_operator(std::string_view symbol);
  bool take_keyword(std::string_view word);
  std::string take_name(const char* what);
  std::string take_target();  // a name that gets a value
  void expect(TokenKind kind, const char* what);
  void expect_operator(std::string_view symbol);

  ExpressionPtr expression();                    // with `a if b else c`
  ExpressionPtr expression_without_condition();  // from `or` down

  // Refuses calls of names that are neither functions nor given a value somewhere in the template.
  void check_calls() const;

 private:
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_number();
  ExpressionPtr parse_parenthesis();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  ExpressionPtr parse_filters(ExpressionPtr value);
  ExpressionPtr parse_test(ExpressionPtr value);
  void parse_arguments(Expression& call);
  bool begins_test_argument() const;

  ExpressionPtr make(ExpressionKind kind, std::string name = {}) const;
  void adopt(Expression& parent, ExpressionPtr child) const;
  ExpressionPtr combine(ExpressionKind kind, std::string name, ExpressionPtr a,
                        ExpressionPtr b) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::set<std::string> assigned_;
  std::vector<std::pair<std::string, int>> called_;  // name, line
};

}  // namespace expertplex::chat
