// Regular expressions of tokenizer.json. The `tokenizers` library runs them with Oniguruma (Ruby
// syntax); we run them with PCRE2 and its JIT, after a translation of what the two read
// differently:
// `\s` `\w` `\d` `\h` `\v` `\b`, script names, `{,n}`. What cannot be translated exactly (nested
// and intersected classes, POSIX brackets, back references, option groups other than (?i:)) is
// refused.
//
// Thread rules: immutable after compiling; matching may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace expertplex {

// The PCRE2 spelling of an Oniguruma pattern.
Result<std::string> translate_pattern(std::string_view pattern);

class Regex {
 public:
  static Result<Regex> compile(std::string_view oniguruma_pattern);
  // Matches `text` and nothing else.
  static Result<Regex> compile_literal(std::string_view text);

  // Calls found(begin, end) for every match from left to right. An empty match directly after
  // another match is skipped. REQUIRES: valid UTF-8. Fails only where a match needs more memory
  // than allowed.
  Result<void> for_each_match(std::string_view text,
                              const std::function<void(size_t begin, size_t end)>& found) const;

 private:
  static Result<Regex> compile_pcre(const std::string& pattern, std::string_view original,
                                    uint32_t options);
  std::shared_ptr<const void> code_;
};

}  // namespace expertplex
