// Added tokens: strings that are found in the text before everything else and become one id. They
// are matched leftmost-longest; `normalized` ones in the normalized text, the others in the text as
// it came.
//
// Thread rules: immutable after loading.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/regex.h"

namespace expertplex {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

// A part of the text: an added token (id >= 0) or text in between (id = -1).
struct TextPart {
  int32_t id = -1;
  std::string_view text;
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  // `pattern` is what to look for: the content, or its normalized form. Empty patterns never match.
  void add(const AddedToken& token, std::string_view pattern);

  // The parts of `text` in order, empty text left out. Without `parse_special`, special tokens are
  // text.
  std::vector<TextPart> split(std::string_view text, bool parse_special) const;

 private:
  struct Match {
    size_t length = 0;
    const AddedToken* token = nullptr;
  };
  Match longest_at(std::string_view text, size_t at) const;
  bool touches_word(std::string_view text, size_t begin, size_t end) const;

  static constexpr uint32_t kRoot = 0;
  std::vector<int32_t> token_at_node_;               // index into tokens_, -1 if none ends here
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte
  std::vector<AddedToken> tokens_;
  Regex word_character_;
};

}  // namespace expertplex
