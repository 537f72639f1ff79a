// The flags that shape an engine, shared by the verbs that run one. Names that users of vLLM and
// SGLang know work too where the meaning is the same.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "serving/engine.h"

namespace expertplex::cli {

struct EngineFlags {
  EngineConfig config;
  std::string model;
  std::string moe_activation = "native";
  std::string preemption = "on";
  std::string kv_cache_bytes;
  std::string log_level = "info";
};

// --model and --log-level.
void add_model_flags(CLI::App& verb, EngineFlags& flags);
// The rest.
void add_engine_flags(CLI::App& verb, EngineFlags& flags);

// What the flags mean together.
Result<EngineConfig> engine_config(const EngineFlags& flags);

}  // namespace expertplex::cli
