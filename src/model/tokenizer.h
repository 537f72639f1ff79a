// Byte-level BPE as `tokenizer.json` describes it: added (special) tokens, normalizer,
// pre-tokenizer regexes, merges, byte decoder. Same ids as the `tokenizers` library gives, or a
// refusal at load that names the unsupported component. (`truncation` and `padding` are not
// applied, as in other servers; code points of the newest Unicode versions may be classed
// differently by the two regex engines.)
//
// Thread rules: immutable after loading; encode and decode may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace expertplex {

class Tokenizer {
 public:
  // Reads tokenizer.json (required) and tokenizer_config.json (chat template, eos; optional).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& directory);
  ~Tokenizer();

  // Text to ids. Special tokens written in the text become their ids only if `parse_special` (chat
  // templates); otherwise they are ordinary text, so that a user cannot forge a turn. Added tokens
  // that are not special (`<think>`) always become their ids. `add_special` applies the
  // post-processor (a BOS token where the model has one). Invalid UTF-8 is an error.
  Result<std::vector<int32_t>> encode(std::string_view text, bool parse_special,
                                      bool add_special = false) const;

  // Ids to bytes (not necessarily whole UTF-8 sequences). Unknown ids give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // One more than the largest id in use (the model's vocabulary may be padded beyond it).
  int vocab_size() const;
  bool is_special(int32_t id) const;
  // The Jinja source of the chat template; empty if the directory has none.
  const std::string& chat_template() const;
  // Values that templates may use: bos_token, eos_token, ... ; empty if absent.
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of ids into a stream of text in which no chunk splits a UTF-8 code point; bytes
// that can never become valid are replaced by U+FFFD. One per request; not thread-safe.
class IncrementalDecoder {
 public:
  IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);

  // The text that became complete with this token; may be empty.
  std::string push(int32_t id);
  // What is left at the end of the stream (an incomplete sequence becomes U+FFFD).
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes: the start of an incomplete code point
};

}  // namespace expertplex
