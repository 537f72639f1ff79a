// The byte alphabet of GPT-2: vocabularies and merges spell each byte as one printable code point
// (printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace expertplex {

// The code point that spells a byte.
uint32_t byte_to_letter(uint8_t byte);

// The bytes that `token` spells; no value if one of its code points is not in the alphabet (or the
// token is not valid UTF-8).
std::optional<std::string> spelled_bytes(std::string_view token);

}  // namespace expertplex
