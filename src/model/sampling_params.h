// SamplingParams: how one request wants its tokens chosen and when it ends, with the defaults of
// OpenAI's API and the extras that vLLM users know (top_k, stop_token_ids, ignore_eos, min_tokens).
// Exact semantics: temperature 0 is greedy (lowest id wins ties); else logits / temperature, top-k
// (0 = all), then top-p over the softmax of what is left (the smallest set whose sum reaches top_p,
// always at least one token), then one draw. The draw depends on (seed, position) only, so that a
// request's tokens do not depend on its batch.
//
// Thread rules: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex {

struct SamplingParams {
  std::optional<int> max_tokens;  // absent: the rest of the context
  int min_tokens = 0;             // no eos or stop before that many
  float temperature = 1.0f;
  float top_p = 1.0f;
  int top_k = 0;                  // 0: all (vLLM's -1 becomes 0 where requests are read)
  std::optional<uint64_t> seed;   // absent: drawn per request
  std::vector<std::string> stop;  // the text ends before the first of these
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
};

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 1024;
constexpr size_t kMaxStopTokenIds = 256;

// Ranges and lengths; the error names the OpenAI field.
Result<void> validate(const SamplingParams& params);

}  // namespace expertplex
