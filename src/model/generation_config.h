// SamplingDefaults: what a model's `generation_config.json` recommends for the sampling fields that
// a request leaves out, as vLLM and SGLang use it. Without the file, OpenAI's defaults.
//
// Thread rules: a value, immutable after loading.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/sampling_params.h"

namespace expertplex {

struct SamplingDefaults {
  float temperature = 1;
  float top_p = 1;
  int top_k = 0;  // 0: all
  // "repetition_penalty 1.05": what the file asks for and this build does not do.
  std::vector<std::string> not_applied;

  void apply_to(SamplingParams& params) const;
};

// Reads the file of a model directory, if there is one. The error names file, field, expected, got.
Result<SamplingDefaults> load_sampling_defaults(const std::string& directory);

}  // namespace expertplex
