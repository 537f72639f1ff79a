// Values from outside, as far as a message can show them.
#pragma once

#include <string>

namespace expertplex {

// At most `max_bytes` of `text`, cut between code points, and "..." where something was cut off.
inline std::string shorten(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text + "...";
}

}  // namespace expertplex
