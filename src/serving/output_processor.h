// OutputProcessor: from one request's sampled tokens to its text and its end. It applies eos,
// stop_token_ids, stop strings, min_tokens and max_tokens.
//
// Stop strings: the text is read as one stream; the stop string that completes first ends it (of
// those that complete at the same byte, the longest), whatever the boundaries of tokens. Text that
// may still become a stop string is held back, no more than that, and comes out when it cannot any
// longer or when the request ends by length. The first min_tokens tokens never end a request, and
// their text is not searched.
// A token that ends the request (eos, stop_token_ids) counts and is reported, but gives no text
// unless include_stop_str_in_output.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/sampling_params.h"
#include "serving/engine.h"

namespace expertplex {

// Turns ids into whole code points. Production wraps IncrementalDecoder (model/tokenizer.h).
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t token) = 0;
  virtual std::string finish() = 0;
};

// Cuts a stream of text before (or after) the first stop string.
class StopMatcher {
 public:
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Returns what may go out now; `stopped()` tells whether a stop string has ended the text.
  std::string push(const std::string& text);
  // What was held back, when the text ends otherwise.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  // Bytes at the end of held_ that may still become a stop string.
  size_t open_suffix() const;

  std::vector<std::string> stops_;
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;
};

class OutputProcessor {
 public:
  struct Step {
    std::string text;
    FinishReason finish = FinishReason::kNone;
  };

  // `max_tokens` is what sampling.max_tokens and the context allow, at least 1.
  OutputProcessor(const SamplingParams& sampling, int max_tokens,
                  const std::vector<int32_t>& eos_tokens, std::unique_ptr<TextStream> stream);

  // Takes the next token. Not to be called after a step with finish != kNone.
  Step push(int32_t token);

  int token_count() const { return token_count_; }
  bool finished() const { return finished_; }
  // Ids that may not be sampled before min_tokens: those that would end the request.
  const std::vector<int32_t>& early_forbidden() const { return ending_tokens_; }
  bool before_min_tokens() const { return token_count_ < min_tokens_; }

 private:
  bool ends(int32_t token) const;
  std::string text_of(const std::string& piece);

  std::vector<int32_t> ending_tokens_;
  int min_tokens_, max_tokens_;
  bool include_stop_;
  std::unique_ptr<TextStream> stream_;
  StopMatcher matcher_;
  int token_count_ = 0;
  bool finished_ = false;
};

}  // namespace expertplex
