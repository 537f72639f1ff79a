// Oniguruma's Ruby syntax to PCRE2. Both engines agree on most of what tokenizers use; this walks
// the pattern once and rewrites or refuses the rest.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "model/tokenizer/regex.h"

namespace expertplex {
namespace {

constexpr const char* kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr const char* kHexInClass = "0-9a-fA-F";

bool compiles(const std::string& pattern) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                       PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          EXPERTPLEX_TRY(escape(false));
          break;
        case '[':
          EXPERTPLEX_TRY(character_class());
          break;
        case '(':
          EXPERTPLEX_TRY(group());
          break;
        case '{':
          EXPERTPLEX_TRY(interval());
          break;
        default:
          out_ += in_[at_++];
      }
    }
    return out_;
  }

 private:
  Error refuse(std::string_view what) const {
    return make_error(ErrorCode::kUnsupported, "{} at byte {} of the pattern is not supported",
                      what, at_);
  }
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (in_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    out_ += text;
    return true;
  }
  void replace(size_t length, std::string_view with) {
    at_ += length;
    out_ += with;
  }

  Result<void> escape(bool in_class);
  Result<void> property();
  Result<void> hex_escape();
  Result<void> character_class();
  Result<void> group();
  Result<void> interval();

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

Result<void> Translator::escape(bool in_class) {
  const char c = peek(1);
  const auto classed = [&](std::string_view inside, bool negated) {
    return in_class ? std::string(inside) : fmt::format("[{}{}]", negated ? "^" : "", inside);
  };
  switch (c) {
    case '\0':
      return refuse("a trailing backslash");
    case 's':
      replace(2, R"(\p{White_Space})");
      return {};
    case 'S':
      replace(2, R"(\P{White_Space})");
      return {};
    case 'd':
      replace(2, R"(\p{Nd})");
      return {};
    case 'D':
      replace(2, R"(\P{Nd})");
      return {};
    case 'w':
      replace(2, classed(kWordInClass, false));
      return {};
    case 'h':
      replace(2, classed(kHexInClass, false));
      return {};
    case 'W':
    case 'H':
      if (in_class) return refuse(fmt::format("\\{} in a class", c));
      replace(2, classed(c == 'W' ? kWordInClass : kHexInClass, true));
      return {};
    case 'v':
      replace(2, R"(\x{b})");
      return {};
    case 'p':
    case 'P':
      return property();
    case 'x':
    case 'u':
      return hex_escape();
    case 'b':
    case 'B': {
      if (in_class) {
        if (c == 'B') return refuse("\\B in a class");
        replace(2, R"(\x{8})");
        return {};
      }
      const std::string word = classed(kWordInClass, false);
      replace(2, c == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                          : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word));
      return {};
    }
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
      replace(2, in_.substr(at_, 2));
      return {};
    case 'A':
    case 'z':
      if (in_class) break;
      replace(2, in_.substr(at_, 2));
      return {};
    default:
      if (std::isalnum(static_cast<unsigned char>(c))) break;
      out_ += '\\';  // an escaped symbol, possibly of several bytes: the rest is copied as it is
      ++at_;
      out_ += in_[at_++];
      return {};
  }
  return refuse(fmt::format("\\{}{}", c, in_class ? " in a class" : ""));
}

// \xHH, \x{H...}, \uHHHH: code points. (A \xHH of 80 and above is a raw byte to Oniguruma.)
Result<void> Translator::hex_escape() {
  const bool braces = peek(1) == 'x' && peek(2) == '{';
  const size_t begin = at_ + (braces ? 3 : 2);
  const size_t limit = braces ? 6 : peek(1) == 'x' ? 2 : 4;
  size_t end = begin;
  while (end < in_.size() && end - begin < limit &&
         std::isxdigit(static_cast<unsigned char>(in_[end]))) {
    ++end;
  }
  const std::string digits(in_.substr(begin, end - begin));
  const bool closed = !braces || (end < in_.size() && in_[end] == '}');
  const bool complete = braces ? !digits.empty() : digits.size() == limit;
  if (!closed || !complete) return refuse("a malformed hexadecimal escape");
  if (peek(1) == 'x' && !braces && digits[0] >= '8') return refuse("a raw byte escape");
  out_ += fmt::format("\\x{{{}}}", digits);
  at_ = end + (braces ? 1 : 0);
  return {};
}

// General categories mean the same to both. A script name means Script to Oniguruma but
// Script_Extensions to PCRE2, unless it is spelled `sc:`.
Result<void> Translator::property() {
  if (peek(2) != '{') return refuse("a property without braces");
  const size_t close = in_.find('}', at_);
  if (close == std::string_view::npos) return refuse("an unclosed property");
  std::string name;
  bool negated = peek(1) == 'P';
  for (const char c : in_.substr(at_ + 3, close - at_ - 3)) {
    if (c == '^' && name.empty()) {
      negated = !negated;
    } else if (std::isalpha(static_cast<unsigned char>(c))) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (c != ' ' && c != '_' && c != '-') {
      return refuse("a property name with symbols");
    }
  }
  static constexpr std::pair<const char*, const char*> kLongNames[] = {
      {"letter", "L"},
      {"uppercaseletter", "Lu"},
      {"lowercaseletter", "Ll"},
      {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"},
      {"otherletter", "Lo"},
      {"mark", "M"},
      {"number", "N"},
      {"decimalnumber", "Nd"},
      {"punctuation", "P"},
      {"symbol", "S"},
      {"separator", "Z"},
      {"spaceseparator", "Zs"},
      {"control", "Cc"},
      {"other", "C"},
  };
  for (const auto& [longer, shorter] : kLongNames) {
    if (name == longer) name = shorter;
  }
  if (name.size() > 2 && compiles(fmt::format("\\p{{sc:{}}}", name))) name = "sc:" + name;
  if (!compiles(fmt::format("\\p{{{}}}", name))) {
    return refuse(fmt::format("the property '{}'", name));
  }
  out_ += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
  at_ = close + 1;
  return {};
}

Result<void> Translator::character_class() {
  take("[");
  take("^");
  if (peek(0) == ']') return refuse("an empty class");
  while (at_ < in_.size()) {
    const char c = in_[at_];
    if (c == ']') {
      take("]");
      return {};
    }
    if (c == '[') return refuse(peek(1) == ':' ? "a POSIX bracket" : "a class in a class");
    if (c == '&' && peek(1) == '&') return refuse("an intersection of classes");
    if (c == '\\') {
      EXPERTPLEX_TRY(escape(true));
    } else {
      out_ += c;
      ++at_;
    }
  }
  return refuse("an unclosed class");
}

Result<void> Translator::group() {
  if (peek(1) != '?') {
    if (peek(1) == '*') return refuse("a (* verb");
    take("(");
    return {};
  }
  for (const char* prefix : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
    if (take(prefix)) return {};
  }
  // Further in, the two disagree on how far the option reaches across `|`.
  if (at_ == 0 && take("(?i)")) return {};
  return refuse("this kind of group");
}

Result<void> Translator::interval() {
  const size_t close = in_.find('}', at_);
  const auto body = close == std::string_view::npos ? std::string_view("x")
                                                    : in_.substr(at_ + 1, close - at_ - 1);
  const bool counts =
      !body.empty() && body != "," && std::all_of(body.begin(), body.end(), [](char c) {
        return std::isdigit(static_cast<unsigned char>(c)) || c == ',';
      });
  if (!counts) {
    out_ += "\\{";  // a brace that counts nothing is itself
    ++at_;
    return {};
  }
  // To Oniguruma `{1,3}+` repeats the repetition, to PCRE2 it forbids backtracking.
  if (close + 1 < in_.size() && in_[close + 1] == '+') return refuse("'+' after an interval");
  out_ += body[0] == ',' ? "{0" : "{";
  out_ += body;
  out_ += '}';
  at_ = close + 1;
  return {};
}

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace expertplex
