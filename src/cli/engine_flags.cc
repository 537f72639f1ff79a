#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/byte_size.h"

namespace expertplex::cli {

void add_model_flags(CLI::App& verb, EngineFlags& flags) {
  verb.add_option("-m,--model,--model-path", flags.model,
                  "Model directory (Hugging Face layout); the bundled model if left out")
      ->type_name("DIR");
  verb.add_option("--log-level", flags.log_level, "debug, info, warn, error or off")
      ->capture_default_str()
      ->type_name("LEVEL");
}

void add_engine_flags(CLI::App& verb, EngineFlags& flags) {
  EngineConfig& config = flags.config;
  const std::string group = "Engine";
  const auto number = [&](const char* names, int& value, const char* text) {
    verb.add_option(names, value, text)->capture_default_str()->type_name("N")->group(group);
  };
  number("--max-model-len,--context-length", config.max_model_len,
         "Longest prompt and answer together, in tokens; 0: the model's context");
  number("--max-queued-requests", config.max_queued_requests,
         "Requests that may wait; more are answered with 429");
  number("--max-prefill-tokens,--max-num-batched-tokens", config.max_prefill_tokens,
         "Tokens of a prefill iteration");
  number("--max-decode-batch,--max-running-requests,--max-num-seqs", config.max_decode_batch,
         "Sequences of a decode server's iteration");
  number("--prefill-servers", config.prefill_servers, "Prefill attention servers");
  number("--decode-servers", config.decode_servers, "Decode attention servers");
  number("--moe-servers", config.moe_servers, "MoE servers, shared by both phases");
  number("--moe-clusters", config.moe_clusters,
         "Workers of each MoE server, at least 2; 0: chosen for the machine");
  number("--decode-clusters", config.sharing.decode_clusters,
         "Workers of an MoE server that decode gets while prefill has work too");
  number("--max-decode-clusters", config.sharing.max_decode_clusters,
         "What that share may grow to with the decode load");
  verb.add_option("--moe-activation", flags.moe_activation,
                  "How activations travel to the experts: native or fp8")
      ->check(CLI::IsMember({"native", "fp8"}))
      ->capture_default_str()
      ->type_name("KIND")
      ->group(group);
  verb.add_option("--preemption", flags.preemption,
                  "Whether decode operations interrupt prefill operations: on or off")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->type_name("on|off")
      ->group(group);
  verb.add_option(
          "--kv-cache-bytes", flags.kv_cache_bytes,
          "KV cache of each attention server (512M, 2G); chosen for the machine if left out")
      ->type_name("SIZE")
      ->group(group);
}

Result<EngineConfig> engine_config(const EngineFlags& flags) {
  EngineConfig config = flags.config;
  config.activation = flags.moe_activation == "fp8" ? MoeActivation::kFp8 : MoeActivation::kNative;
  config.sharing.preemption = flags.preemption == "on";
  config.sharing.max_decode_clusters =
      std::max(config.sharing.max_decode_clusters, config.sharing.decode_clusters);
  if (!flags.kv_cache_bytes.empty()) {
    auto bytes = parse_byte_size(flags.kv_cache_bytes);
    if (!bytes) return bytes.error().in("--kv-cache-bytes");
    config.kv_cache_bytes = *bytes;
  }
  return config;
}

}  // namespace expertplex::cli
