// Where the model is: what --model says, else the bundled one.
#pragma once

#include <string>

#include "base/result.h"

namespace expertplex::cli {

// `given`: a directory with a config.json, or the name of a bundled model; empty: expertplex-mini.
// Bundled models are looked for in $EXPERTPLEX_MODELS (a directory of models, or a model itself),
// then beside the binary: models, ../models and ../share/expertplex/models. The error lists where
// it looked.
Result<std::string> find_model_directory(const std::string& given);

}  // namespace expertplex::cli
