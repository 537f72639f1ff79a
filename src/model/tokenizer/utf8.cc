#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

// Length of the sequence that `lead` begins, 0 if it begins none; and which second bytes are
// allowed.
int sequence_length(uint8_t lead, uint8_t& low, uint8_t& high) {
  low = 0x80;
  high = 0xBF;
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) {
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
    return 3;
  }
  if (lead > 0xF4) return 0;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;  // nothing above U+10FFFF
  return 4;
}

}  // namespace

Utf8Step scan_utf8(std::string_view text, size_t at) {
  const uint8_t lead = byte_at(text, at);
  uint8_t low = 0;
  uint8_t high = 0;
  const int length = sequence_length(lead, low, high);
  if (length == 0) return {Utf8State::kInvalid, 1, 0};
  if (length == 1) return {Utf8State::kComplete, 1, lead};
  uint32_t code_point = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {Utf8State::kIncomplete, i, 0};
    const uint8_t next = byte_at(text, at + i);
    if (next < low || next > high) return {Utf8State::kInvalid, i, 0};
    low = 0x80;
    high = 0xBF;
    code_point = (code_point << 6) | (next & 0x3Fu);
  }
  return {Utf8State::kComplete, length, code_point};
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (byte_at(text, at) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = scan_utf8(text, at);
    if (step.state != Utf8State::kComplete) return at;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace expertplex
