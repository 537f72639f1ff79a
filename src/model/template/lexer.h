// Splits a template into text, `{{ ... }}` and `{% ... %}`, with the white-space rules that chat
// templates are written for: trim_blocks and lstrip_blocks on, `-` and `+` signs, one final newline
// dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace expertplex::chat {

enum class TokenKind {
  kText,         // outside of tags
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // value: the unescaped contents
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string value;
  int line = 1;
};

// Ends with a kEnd token. Errors name the line.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace expertplex::chat
