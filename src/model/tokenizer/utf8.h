// UTF-8, byte by byte: what is a whole code point, what may still become one, what never will.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace expertplex {

enum class Utf8State {
  kComplete,    // a code point of `length` bytes
  kIncomplete,  // the text ends inside a code point that more bytes could complete
  kInvalid,     // `length` bytes that decoders replace by one U+FFFD (Unicode's maximal subpart)
};

struct Utf8Step {
  Utf8State state = Utf8State::kInvalid;
  int length = 0;
  uint32_t code_point = 0;  // only if complete
};

// REQUIRES: at < text.size().
Utf8Step scan_utf8(std::string_view text, size_t at);

// The offset of the first byte that is not valid UTF-8; text.size() if all is.
size_t find_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The White_Space property, which is what `\s` means to tokenizers.
bool is_white_space(uint32_t code_point);

}  // namespace expertplex
