#include "model/template/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "model/tokenizer/utf8.h"

namespace expertplex::chat {
namespace {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }

// Line ends become \n, and the last one goes, as Jinja does.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), text_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) {
      EXPERTPLEX_TRY(text_and_tag());
    }
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  Error refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidArgument, "line {}: {}", line_,
                      fmt::format(format, std::forward<Args>(args)...));
  }
  bool looking_at(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  void emit(TokenKind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line_});
  }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<int64_t>(at_),
                                         text_.begin() + static_cast<int64_t>(at_ + count), '\n'));
    at_ += count;
  }

  void emit_text(size_t end, char sign, bool output_tag);
  void finish_tag(bool dash, bool output_tag);
  Result<void> text_and_tag();
  Result<void> comment();
  Result<bool> raw_block();
  Result<void> expression_tokens(bool output_tag);
  Result<void> one_token();
  Result<void> number();
  Result<void> string();
  void escape_sequence(std::string& value);

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // nothing but a newline stands before at_
  std::string brackets_;
  std::vector<Token> tokens_;
};

// Emits the text up to `end`, shortened as the tag that follows demands.
void Lexer::emit_text(size_t end, char sign, bool output_tag) {
  std::string_view text = text_.substr(at_, end - at_);
  if (sign == '-') {
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  } else if (sign != '+' && !output_tag) {
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    const auto rest = text.substr(line_begin);
    if ((line_begin > 0 || line_starting_) && std::all_of(rest.begin(), rest.end(), is_space)) {
      text = text.substr(0, line_begin);
    }
  }
  if (!text.empty()) emit(TokenKind::kText, std::string(text));
  advance(end - at_);
}

// After the closing braces: what of the following white space goes with them.
void Lexer::finish_tag(bool dash, bool output_tag) {
  const size_t begin = at_;
  size_t end = at_;
  if (dash) {
    while (end < text_.size() && is_space(text_[end])) ++end;
  } else if (!output_tag && end < text_.size() && text_[end] == '\n') {
    ++end;
  }
  advance(end - begin);
  line_starting_ = end > begin && text_[end - 1] == '\n';
}

Result<void> Lexer::text_and_tag() {
  size_t open = at_;
  while ((open = text_.find('{', open)) != std::string_view::npos) {
    const char next = open + 1 < text_.size() ? text_[open + 1] : '\0';
    if (next == '{' || next == '%' || next == '#') break;
    ++open;
  }
  if (open == std::string_view::npos) {
    emit(TokenKind::kText, std::string(text_.substr(at_)));
    advance(text_.size() - at_);
    return {};
  }
  const char kind = text_[open + 1];
  const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
  const bool has_sign = sign == '-' || (sign == '+' && kind != '{');
  emit_text(open, has_sign ? sign : '\0', kind == '{');
  advance(has_sign ? 3 : 2);
  if (kind == '#') return comment();
  if (kind == '%') {
    EXPERTPLEX_ASSIGN(const bool raw, raw_block());
    if (raw) return {};
  }
  emit(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
  return expression_tokens(kind == '{');
}

Result<void> Lexer::comment() {
  const size_t close = text_.find("#}", at_);
  if (close == std::string_view::npos) return refuse("a comment is not closed");
  const char sign = close > at_ ? text_[close - 1] : '\0';
  advance(close + 2 - at_);
  if (sign == '+') {
    line_starting_ = false;
  } else {
    finish_tag(sign == '-', false);
  }
  return {};
}

// {% raw %} ... {% endraw %}: true if there was one.
Result<bool> Lexer::raw_block() {
  size_t at = at_;
  while (at < text_.size() && is_space(text_[at])) ++at;
  if (text_.substr(at, 3) != "raw" ||
      (at + 3 < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at + 3]))))
    return false;
  const size_t close = text_.find("%}", at);
  if (close == std::string_view::npos) return refuse("raw is not closed");
  const bool dash = text_[close - 1] == '-';
  advance(close + 2 - at_);
  finish_tag(dash, true);  // trim_blocks does not reach behind {% raw %}
  for (size_t open = text_.find("{%", at_); open != std::string_view::npos;
       open = text_.find("{%", open + 2)) {
    size_t name = open + 2;
    const char sign = name < text_.size() ? text_[name] : '\0';
    if (sign == '-' || sign == '+') ++name;
    while (name < text_.size() && is_space(text_[name])) ++name;
    if (text_.substr(name, 6) != "endraw") continue;
    const size_t end = text_.find("%}", name);
    if (end == std::string_view::npos) break;
    emit_text(open, sign, false);
    advance(end + 2 - at_);
    finish_tag(text_[end - 1] == '-', false);
    return true;
  }
  return refuse("raw has no endraw");
}

Result<void> Lexer::expression_tokens(bool output_tag) {
  const std::string_view close = output_tag ? "}}" : "%}";
  brackets_.clear();
  while (true) {
    while (at_ < text_.size() && is_space(text_[at_])) advance(1);
    if (at_ >= text_.size()) return refuse("a tag is not closed with {}", close);
    if (brackets_.empty()) {
      const char c = text_[at_];
      const bool sign =
          (c == '-' || (c == '+' && !output_tag)) && text_.substr(at_ + 1, 2) == close;
      if (sign || looking_at(close)) {
        emit(output_tag ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
        advance(sign ? 3 : 2);
        if (c == '+') {
          line_starting_ = false;
        } else {
          finish_tag(c == '-', output_tag);
        }
        return {};
      }
    }
    EXPERTPLEX_TRY(one_token());
  }
}

Result<void> Lexer::one_token() {
  const char c = text_[at_];
  if (is_name_start(c)) {
    size_t end = at_;
    while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
    emit(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
    advance(end - at_);
    return {};
  }
  if (is_digit(c)) return number();
  if (c == '"' || c == '\'') return string();
  static constexpr std::array<std::string_view, 7> kLong = {
      "//", "**", "==", "!=", ">=", "<=", "~"};
  std::string_view symbol = text_.substr(at_, 1);
  for (const auto longer : kLong) {
    if (looking_at(longer)) symbol = longer;
  }
  if (std::string_view("+-*/%<>=.:|,()[]{}!~").find(c) == std::string_view::npos || symbol == "!") {
    return refuse("unexpected character '{}'", text_.substr(at_, scan_utf8(text_, at_).length));
  }
  if (std::string_view("([{").find(c) != std::string_view::npos) {
    brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (std::string_view(")]}").find(c) != std::string_view::npos) {
    if (brackets_.empty() || brackets_.back() != c) return refuse("unexpected '{}'", c);
    brackets_.pop_back();
  }
  emit(TokenKind::kOperator, std::string(symbol));
  advance(symbol.size());
  return {};
}

Result<void> Lexer::number() {
  size_t end = at_;
  std::string digits;
  bool real = false;
  const auto take_digits = [&] {
    while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '_')) {
      if (text_[end] != '_') digits += text_[end];
      ++end;
    }
  };
  take_digits();
  if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
    real = true;
    digits += text_[end++];
    take_digits();
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    size_t exponent = end + 1;
    if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
    if (exponent < text_.size() && is_digit(text_[exponent])) {
      real = true;
      digits += text_.substr(end, exponent - end);
      end = exponent;
      take_digits();
    }
  }
  if (digits.size() > (real ? 64u : 18u)) return refuse("a number of more than 18 digits");
  emit(real ? TokenKind::kFloat : TokenKind::kInteger, digits);
  advance(end - at_);
  return {};
}

Result<void> Lexer::string() {
  const char quote = text_[at_];
  const int begin_line = line_;
  std::string value;
  advance(1);
  while (at_ < text_.size() && text_[at_] != quote) {
    if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
      escape_sequence(value);
    } else {
      value += text_[at_];
      advance(1);
    }
  }
  if (at_ >= text_.size())
    return refuse("a string that begins in line {} is not closed", begin_line);
  advance(1);
  emit(TokenKind::kString, std::move(value));
  return {};
}

// Python's escapes; an unknown one stays as it is.
void Lexer::escape_sequence(std::string& value) {
  static constexpr std::string_view kNames = "ntrabfv\\'\"";
  static constexpr std::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
  const char c = text_[at_ + 1];
  if (const size_t known = kNames.find(c); known != std::string_view::npos) {
    value += kValues[known];
    return advance(2);
  }
  if (c == '\n') return advance(2);
  const size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  const auto digits = text_.substr(std::min(at_ + 2, text_.size()), width);
  const bool hexadecimal =
      width > 0 && digits.size() == width && std::all_of(digits.begin(), digits.end(), [](char d) {
        return std::isxdigit(static_cast<unsigned char>(d)) != 0;
      });
  const uint64_t code_point =
      hexadecimal ? std::stoull(std::string(digits), nullptr, 16) : UINT64_MAX;
  if (code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF)) {
    append_utf8(value, static_cast<uint32_t>(code_point));
    return advance(2 + width);
  }
  value += '\\';
  advance(1);
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return make_error(ErrorCode::kInvalidArgument, "the template has {} bytes; expected at most {}",
                      source.size(), kMaxSourceBytes);
  }
  if (const size_t bad = find_invalid_utf8(source); bad != source.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the template is not valid UTF-8 at byte {}",
                      bad);
  }
  return Lexer(source).run();
}

}  // namespace expertplex::chat
