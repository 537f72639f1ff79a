// `expertplex info`: what a model is, and what it needs on this machine.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/log.h"
#include "cli/engine_flags.h"
#include "cli/loaded_model.h"
#include "cli/verbs.h"
#include "cpu/cpu_backend.h"
#include "serving/memory_plan.h"

namespace expertplex::cli {
namespace {

constexpr const char* kFooter =
    "\nExamples:\n"
    "  expertplex info\n"
    "  expertplex info --model DIR --max-model-len 8192 --moe-servers 4\n"
    "  expertplex info --json | jq .memory.kv_bytes_per_token";

struct InfoFlags {
  EngineFlags engine;
  bool json = false;
};

const char* architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kMiniMaxM2:
      return "MiniMaxM2ForCausalLM";
    case Architecture::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
  }
  return "unknown";
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The numbers, before they are made readable.
struct Facts {
  std::string directory, backend;
  ModelSpec spec;
  ParameterCount parameters;
  int64_t checkpoint_bytes = 0;
  bool chat_template = false;
  KvCacheShape kv_cache;  // of one server, page_count left out
  int max_model_len = 0;
  int64_t available_bytes = 0;
  std::vector<std::string> plan_lines;
  std::string plan_problem;  // why the configuration does not fit
  int64_t kv_bytes = 0, moe_buffer_bytes = 0;

  int64_t kv_bytes_per_token() const { return static_cast<int64_t>(kv_cache.bytes_per_token()); }
};

Json to_json(const Facts& facts) {
  const ModelSpec& spec = facts.spec;
  return {
      {"model", spec.name},
      {"directory", facts.directory},
      {"architecture", architecture_name(spec.architecture)},
      {"layers", spec.layer_count},
      {"hidden_size", spec.hidden_size},
      {"vocab_size", spec.vocab_size},
      {"context", spec.max_position_count},
      {"attention",
       {{"query_heads", spec.query_head_count},
        {"kv_heads", spec.kv_head_count},
        {"head_dim", spec.head_dim},
        {"rotary_dim", spec.rotary_dim}}},
      {"moe",
       {{"experts", spec.expert_count},
        {"experts_per_token", spec.experts_per_token},
        {"expert_intermediate_size", spec.expert_intermediate_size}}},
      {"weights", spec.fp8_weights ? "fp8" : "as stored"},
      {"chat_template", facts.chat_template},
      {"parameters",
       {{"total", facts.parameters.total},
        {"routed_experts", facts.parameters.routed_experts},
        {"active_per_token", facts.parameters.active_per_token},
        {"expert_share", share(facts.parameters.routed_experts, facts.parameters.total)}}},
      {"memory",
       {{"backend", facts.backend},
        {"weights_bytes", facts.checkpoint_bytes},
        {"kv_bytes_per_token", facts.kv_bytes_per_token()},
        {"kv_bytes", facts.kv_bytes},
        {"moe_buffer_bytes", facts.moe_buffer_bytes},
        {"available_bytes", facts.available_bytes},
        {"max_model_len", facts.max_model_len},
        {"fits", facts.plan_problem.empty()},
        {"plan", facts.plan_lines}}},
  };
}

// 23.4 million.
std::string count_in_words(int64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.1f} billion", value * 1e-9);
  if (count >= 1'000'000) return fmt::format("{:.1f} million", value * 1e-6);
  return fmt::format("{}", count);
}

std::string to_text(const Facts& facts) {
  const ModelSpec& spec = facts.spec;
  const ParameterCount& parameters = facts.parameters;
  std::string text = fmt::format("{} ({})\n\n", spec.name, facts.directory);
  const auto row = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  row("architecture", fmt::format("{}, {} layers, hidden size {}, vocabulary {}, context {}",
                                  architecture_name(spec.architecture), spec.layer_count,
                                  spec.hidden_size, spec.vocab_size, spec.max_position_count));
  row("attention", fmt::format("{} query and {} KV heads of {}, rotary {}", spec.query_head_count,
                               spec.kv_head_count, spec.head_dim, spec.rotary_dim));
  row("experts",
      fmt::format("{} per layer, {} per token, intermediate size {}{}", spec.expert_count,
                  spec.experts_per_token, spec.expert_intermediate_size,
                  spec.fp8_weights ? ", FP8 with 128x128 scales" : ""));
  row("parameters",
      fmt::format("{}, of which {} active per token", count_in_words(parameters.total),
                  count_in_words(parameters.active_per_token)));
  row("expert share", fmt::format("{:.1f} % of the parameters",
                                  100 * share(parameters.routed_experts, parameters.total)));
  row("chat template", facts.chat_template ? "yes" : "no");
  text += fmt::format("\nmemory on {}\n\n", facts.backend);
  row("weights", fmt::format("{}, mapped once and shared by all servers",
                             format_bytes(facts.checkpoint_bytes)));
  row("KV cache", fmt::format("{} per token ({} layers x 2 x {} x {} bytes); {} for a full context",
                              format_bytes(facts.kv_bytes_per_token()), spec.layer_count,
                              spec.kv_size(), data_type_bytes(facts.kv_cache.type),
                              format_bytes(facts.kv_bytes_per_token() * facts.max_model_len)));
  for (const std::string& line : facts.plan_lines) text += fmt::format("  {}\n", line);
  if (!facts.plan_problem.empty()) text += fmt::format("  {}\n", facts.plan_problem);
  row("available", format_bytes(facts.available_bytes));
  return text;
}

// A configuration that cannot run is shown too, before it is refused.
void add_plan(Facts& facts, const Result<MemoryPlan>& plan, const EngineConfig& config) {
  if (!plan) {
    facts.plan_problem = plan.error().message;
    return;
  }
  facts.plan_lines = plan->lines(config);
  facts.kv_bytes = plan->kv_bytes;
  facts.moe_buffer_bytes = plan->moe_bytes;
}

Result<void> info(const InfoFlags& flags) {
  EXPERTPLEX_TRY(init_logging(flags.engine.log_level));
  EXPERTPLEX_ASSIGN(EngineConfig config, engine_config(flags.engine));
  EXPERTPLEX_ASSIGN(const LoadedModel model, load_model(flags.engine.model));
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend();
  if (config.moe_clusters == 0) config.moe_clusters = std::max(2, backend->default_moe_clusters());
  Facts facts;
  facts.directory = model.directory;
  facts.backend = backend->name();
  facts.spec = model.spec;
  facts.parameters = count_parameters(model.spec);
  facts.checkpoint_bytes = model.weights->checkpoint_bytes;
  facts.chat_template = model.chat_template != nullptr;
  facts.available_bytes = available_memory_bytes();
  facts.kv_cache = {.layer_count = model.spec.layer_count,
                    .kv_size = model.spec.kv_size(),
                    .type = backend->kv_cache_type(*model.weights),
                    .page_count = 0};
  facts.max_model_len =
      config.max_model_len > 0 ? config.max_model_len : model.spec.max_position_count;
  const auto plan =
      plan_memory(config, model.spec, *model.weights, *backend, facts.available_bytes);
  add_plan(facts, plan, config);
  EXPERTPLEX_TRY(write_stdout(
      flags.json ? to_json(facts).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                 : to_text(facts)));
  if (!plan) return plan.error();
  return {};
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("info", "Show a model's architecture, parameters and memory arithmetic");
  const auto flags = std::make_shared<InfoFlags>();
  flags->engine.log_level = "warn";
  verb->footer(kFooter);
  verb->add_flag("--json", flags->json, "Machine-readable output");
  add_model_flags(*verb, flags->engine);
  add_engine_flags(*verb, flags->engine);
  verb->callback([flags, &exit_code] { exit_code = exit_code_of(info(*flags)); });
}

}  // namespace expertplex::cli
