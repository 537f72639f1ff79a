// POST /tokenize and /detokenize, with vLLM's fields: {prompt | messages, add_special_tokens} gives
// {count, max_model_len, tokens}; {tokens} gives {prompt}.
//
// Thread rules: pure; any thread.
#pragma once

#include <string_view>

#include "api/http_types.h"
#include "api/served_model.h"

namespace expertplex {

HttpResponse tokenize(std::string_view body, const ServedModel& model);
HttpResponse detokenize(std::string_view body, const ServedModel& model);

}  // namespace expertplex
