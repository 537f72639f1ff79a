// Request traces in the formats of the public ones. Lengths in tokens, times in seconds from the
// first request.
//
//   Azure CSV       TIMESTAMP,ContextTokens,GeneratedTokens   2023-11-16 18:15:46.6805900,374,44
//   BurstGPT CSV    Timestamp,...,Request tokens,Response tokens,...   5,ChatGPT,472,18,490,Conversation log
//   Mooncake JSONL  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [...]}
//   ShareGPT JSON   [{"conversations": [{"from": "human", "value": ...}, ...]}, ...], without times
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace expertplex {

struct TraceRequest {
  double arrival_s = 0;
  int64_t prompt = 0, output = 0;  // tokens, 1 or more
};

struct Trace {
  std::string format;                  // "Azure CSV", ...
  bool has_times = true;               // false: all arrivals are 0
  std::vector<TraceRequest> requests;  // by time
  // Lines (ShareGPT: entries) that could not be read, and what was wrong with the first one.
  // Requests without a prompt or an answer are counted here too.
  uint64_t broken = 0;
  std::string first_broken;
};

// Tokens of a text, for ShareGPT; the other formats have counts.
using TokenCounter = std::function<int64_t(std::string_view)>;

// The format is told by the first line. Errors: kNotFound or kUnavailable (the file),
// kInvalidArgument (no known format, or not one line that can be read; ShareGPT without a counter).
Result<Trace> read_trace(const std::string& path, const TokenCounter& count_tokens = {});
// The same of text; `name` stands for the file in errors.
Result<Trace> parse_trace(std::string_view text, const std::string& name,
                          const TokenCounter& count_tokens = {});

}  // namespace expertplex
