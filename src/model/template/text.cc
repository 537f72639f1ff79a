#include "model/template/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include "model/tokenizer/utf8.h"

namespace expertplex::chat {
namespace {

template <typename F>
void for_each_code_point(std::string_view text, F f) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = scan_utf8(text, at);
    const bool valid = step.state == Utf8State::kComplete;
    const auto length = static_cast<size_t>(valid ? step.length : 1);
    f(text.substr(at, length), valid ? step.code_point : 0xFFFD);
    at += length;
  }
}

void append_upper(std::string& out, uint32_t c) {
  if (c == 0xDF) {
    out += "SS";  // the one letter of everyday text whose upper case is longer
  } else {
    append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(c))));
  }
}

bool is_letter(uint32_t c) {
  const auto category = utf8proc_category(static_cast<int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(uint32_t c) {
  const auto category = utf8proc_category(static_cast<int32_t>(c));
  if (c == ' ') return true;
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

}  // namespace

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> pieces;
  for_each_code_point(text, [&](std::string_view piece, uint32_t) { pieces.push_back(piece); });
  return pieces;
}

size_t code_point_count(std::string_view text) {
  size_t count = 0;
  for_each_code_point(text, [&](std::string_view, uint32_t) { ++count; });
  return count;
}

bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view strip(std::string_view text, std::string_view characters, bool left, bool right) {
  const auto set = code_points(characters);
  const auto drop = [&](std::string_view piece) {
    if (characters.empty()) {
      const Utf8Step step = scan_utf8(piece, 0);
      return step.state == Utf8State::kComplete && is_python_space(step.code_point);
    }
    for (const auto& one : set) {
      if (one == piece) return true;
    }
    return false;
  };
  const auto pieces = code_points(text);
  size_t begin = 0;
  size_t end = pieces.size();
  while (left && begin < end && drop(pieces[begin])) ++begin;
  while (right && end > begin && drop(pieces[end - 1])) --end;
  if (begin == end) return {};
  const char* first = pieces[begin].data();
  const char* last = pieces[end - 1].data() + pieces[end - 1].size();
  return {first, static_cast<size_t>(last - first)};
}

std::string to_upper(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](std::string_view, uint32_t c) { append_upper(out, c); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](std::string_view, uint32_t c) {
    append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(c))));
  });
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_code_point(text, [&](std::string_view, uint32_t c) {
    const auto point = static_cast<int32_t>(c);
    append_utf8(out,
                static_cast<uint32_t>(in_word ? utf8proc_tolower(point) : utf8proc_totitle(point)));
    in_word = is_letter(c);
  });
  return out;
}

std::string to_capitalized(std::string_view text) {
  std::string out;
  bool first = true;
  for_each_code_point(text, [&](std::string_view, uint32_t c) {
    const auto point = static_cast<int32_t>(c);
    append_utf8(out,
                static_cast<uint32_t>(first ? utf8proc_totitle(point) : utf8proc_tolower(point)));
    first = false;
  });
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t limit) {
  std::string out;
  int64_t count = 0;
  size_t at = 0;
  if (from.empty()) {  // Python puts `to` around every character
    for (const auto piece : code_points(text)) {
      if (limit < 0 || count++ < limit) out += to;
      out += piece;
    }
    if (limit < 0 || count < limit) out += to;
    return out;
  }
  while (limit < 0 || count < limit) {
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
    ++count;
  }
  return out += text.substr(at);
}

std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string> parts;
  if (!separator.empty()) {
    size_t at = 0;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      const size_t found = text.find(separator, at);
      if (found == std::string_view::npos) break;
      parts.emplace_back(text.substr(at, found - at));
      at = found + separator.size();
    }
    parts.emplace_back(text.substr(at));
    return parts;
  }
  std::string_view rest = strip(text, "", true, false);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.emplace_back(rest);
      break;
    }
    size_t end = 0;
    while (end < rest.size()) {
      const Utf8Step step = scan_utf8(rest, end);
      if (step.state == Utf8State::kComplete && is_python_space(step.code_point)) break;
      end += static_cast<size_t>(step.length);
    }
    parts.emplace_back(rest.substr(0, end));
    while (end < rest.size()) {
      const Utf8Step step = scan_utf8(rest, end);
      if (step.state != Utf8State::kComplete || !is_python_space(step.code_point)) break;
      end += static_cast<size_t>(step.length);
    }
    rest = rest.substr(end);
  }
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::string line;
  bool after_return = false;
  bool open = false;
  for_each_code_point(text, [&](std::string_view piece, uint32_t c) {
    const bool second_half = c == '\n' && after_return;
    after_return = c == '\r';
    if (second_half) return;
    const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    open = !ends;
    if (!ends) {
      line += piece;
      return;
    }
    lines.push_back(std::move(line));
    line.clear();
  });
  if (open) lines.push_back(std::move(line));
  return lines;
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const size_t digits = e - (shortest[0] == '-') - (shortest.find('.') != std::string_view::npos);
  const int decimals = std::max(1, static_cast<int>(digits) - 1 - exponent);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string python_string(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for_each_code_point(text, [&](std::string_view piece, uint32_t c) {
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += piece;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += piece;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
    }
  });
  return out += quote;
}

std::string json_string(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for_each_code_point(text, [&](std::string_view piece, uint32_t c) {
    switch (c) {
      case '"':
        out += "\\\"";
        return;
      case '\\':
        out += "\\\\";
        return;
      case '\n':
        out += "\\n";
        return;
      case '\r':
        out += "\\r";
        return;
      case '\t':
        out += "\\t";
        return;
      case '\b':
        out += "\\b";
        return;
      case '\f':
        out += "\\f";
        return;
      default:
        break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      out += c == 0x7F ? "\x7F" : fmt::format("\\u{:04x}", c);
    } else if (ensure_ascii && c >= 0x10000) {
      out +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
    } else {
      out += piece;
    }
  });
  return out += '"';
}

}  // namespace expertplex::chat
