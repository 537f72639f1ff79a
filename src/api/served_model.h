// What the API knows about the model it serves.
//
// Thread rules: immutable once the server is ready; shared by the io and worker threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "model/chat_template.h"
#include "model/generation_config.h"
#include "model/tokenizer.h"

namespace expertplex {

struct ServedModel {
  std::vector<std::string> names;  // the first one is shown in answers
  int64_t created = 0;             // unix seconds
  int vocab_size = 0;
  int max_model_len = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat is refused
  // Why there is no template.
  std::string chat_template_problem = "the model directory has no chat template";
  SamplingDefaults sampling_defaults;  // of fields that a request leaves out

  const std::string& name() const { return names.front(); }
  bool serves(std::string_view model) const;
  // 404 unless `model` is empty or one of the names.
  std::optional<ApiError> check_name(std::string_view model) const;
};

}  // namespace expertplex
