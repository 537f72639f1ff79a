// The `post_processor` and `decoder` of tokenizer.json: the ids put around an encoded text, and the
// demand that decoding is byte-level.
//
// Thread rules: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace expertplex {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;

  // null, ByteLevel (changes no ids), TemplateProcessing for one sequence, or a Sequence of these.
  static Result<PostProcessor> from_json(const Json& json);
};

// Refuses every decoder but ByteLevel, alone or in a Sequence with Fuse.
Result<void> check_decoder(const Json& json);

}  // namespace expertplex
