// The `pre_tokenizer` of tokenizer.json: cuts text into the words that BPE merges within.
// Supported: ByteLevel (as the last step), Split (Regex or String, all behaviours, invert), Digits,
// Sequence.
//
// Thread rules: immutable after loading.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/tokenizer/regex.h"

namespace expertplex {

// What becomes of the matches of a Split.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Words of a text; most point into it, the others into `owned`.
struct Words {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
};

class PreTokenizer {
 public:
  // `json` is the value of the field, possibly null.
  static Result<PreTokenizer> from_json(const Json& json);

  // REQUIRES: valid UTF-8 that outlives `words`.
  Result<void> split(std::string_view text, Words& words) const;

 private:
  struct Step {
    std::optional<Regex> regex;  // absent: the text stays whole
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;
  };
  Result<void> add(const Json& json);
  Result<void> add_split(const Json& json);
  Result<void> add_byte_level(const Json& json);
  static Result<void> apply(const Step& step, std::string_view text,
                            std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace expertplex
