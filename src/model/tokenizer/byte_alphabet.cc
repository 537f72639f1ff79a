#include "model/tokenizer/byte_alphabet.h"

#include <array>

#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

constexpr uint32_t kLetterEnd = 0x144;

struct Alphabet {
  std::array<uint32_t, 256> letter{};
  std::array<int16_t, kLetterEnd> byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte) byte = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    alphabet.letter[b] = printable ? b : next++;
    alphabet.byte[alphabet.letter[b]] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.letter[' '] == 0x120 && kAlphabet.letter[0xAD] == kLetterEnd - 1);

}  // namespace

uint32_t byte_to_letter(uint8_t byte) { return kAlphabet.letter[byte]; }

std::optional<std::string> spelled_bytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = scan_utf8(token, at);
    if (step.state != Utf8State::kComplete || step.code_point >= kLetterEnd) return std::nullopt;
    const int16_t byte = kAlphabet.byte[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += static_cast<size_t>(step.length);
  }
  return bytes;
}

}  // namespace expertplex
