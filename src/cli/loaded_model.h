// LoadedModel: everything that a model directory holds, read and checked.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/chat_template.h"
#include "model/model_spec.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace expertplex::cli {

struct LoadedModel {
  std::string directory;
  ModelSpec spec;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null if there is none that can be used
  std::string chat_template_problem;                  // why
  std::shared_ptr<const ModelWeights> weights;
};

// `given` as find_model_directory takes it. Shows a progress bar where stderr is a terminal and the
// load takes long enough to be watched; log lines otherwise. A chat template that cannot be
// interpreted is a warning: completions work without it.
Result<LoadedModel> load_model(const std::string& given);

}  // namespace expertplex::cli
