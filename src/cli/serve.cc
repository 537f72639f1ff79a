// `expertplex serve`: the OpenAI-compatible HTTP server.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "api/api_server.h"
#include "base/log.h"
#include "cli/engine_flags.h"
#include "cli/loaded_model.h"
#include "cli/resource_limits.h"
#include "cli/stop_signal.h"
#include "cli/verbs.h"
#include "cpu/cpu_backend.h"

namespace expertplex::cli {
namespace {

// After the last token: for answers to reach their clients.
constexpr Nanoseconds kFlushLimit = 5 * kSecond;

constexpr const char* kFooter =
    "\nExamples:\n"
    "  expertplex serve\n"
    "  expertplex serve --model /models/MiniMax-M2 --port 9000 --served-model-name minimax\n"
    "  expertplex serve --moe-servers 4 --max-queued-requests 256 --kv-cache-bytes 4G\n"
    "\n"
    "SIGTERM, SIGHUP or Ctrl-C: requests that run are finished, new ones refused, at most for\n"
    "--drain-seconds; another signal, a second later or more, stops at once.";

struct ServeFlags {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> served_names;
  std::string generation_config = "auto";
  double drain_seconds = 30;
};

// The model's own defaults for what requests leave out, or OpenAI's.
Result<SamplingDefaults> sampling_defaults(const ServeFlags& flags, const LoadedModel& model) {
  if (flags.generation_config == "none") return SamplingDefaults{};
  EXPERTPLEX_ASSIGN(SamplingDefaults defaults, load_sampling_defaults(model.directory));
  log_info("requests that do not say otherwise: temperature {}, top_p {}, top_k {}",
           defaults.temperature, defaults.top_p, defaults.top_k);
  if (!defaults.not_applied.empty()) {
    log_warn("generation_config.json asks for what this build does not do: {}",
             fmt::join(defaults.not_applied, ", "));
  }
  return defaults;
}

// An option that was meant to follow is not taken for a name.
std::string is_model_name(const std::string& name) {
  if (!name.empty() && !name.starts_with("--")) return {};
  return fmt::format("expected a name, got '{}'", name);
}

// CLI::Range lets nan through.
std::string is_drain_seconds(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && seconds >= 0 && seconds <= 86400) return {};
  return fmt::format("expected 0 to 86400 seconds, got '{}'", text);
}

ServedModel describe_model(const LoadedModel& loaded, const std::vector<std::string>& names,
                           int max_model_len) {
  ServedModel model;
  model.names = names.empty() ? std::vector<std::string>{loaded.spec.name} : names;
  model.created = std::time(nullptr);
  model.vocab_size = loaded.spec.vocab_size;
  model.max_model_len = max_model_len;
  model.tokenizer = loaded.tokenizer;
  model.chat_template = loaded.chat_template;
  if (!loaded.chat_template) model.chat_template_problem = loaded.chat_template_problem;
  return model;
}

void print_ready(const std::string& host, int port, const ServedModel& model) {
  const bool everywhere = host == "0.0.0.0" || host == "::";
  const bool bracketed = host.find(':') != std::string::npos;
  const std::string name = everywhere ? "127.0.0.1" : bracketed ? "[" + host + "]" : host;
  const std::string url = fmt::format("http://{}:{}", name, port);
  const char* path = model.chat_template ? "/v1/chat/completions" : "/v1/completions";
  const char* prompt = model.chat_template
                           ? R"("messages": [{"role": "user", "content": "Hello!"}])"
                           : R"("prompt": "Hello")";
  fmt::print("expertplex {} serves {} at {}\n\n", EXPERTPLEX_VERSION, model.name(), url);
  fmt::print("  curl {}{} -H 'Content-Type: application/json' \\\n", url, path);
  fmt::print("    -d '{{{}, \"max_tokens\": 60}}'\n\n", prompt);
  std::fflush(stdout);
}

// Until a signal comes; what the engine's health says meanwhile goes to the log.
void watch(const Engine& engine) {
  bool healthy = true;
  while (!StopSignal::wait(kSecond)) {
    const Health health = engine.health();
    if (health.healthy == healthy) continue;
    healthy = health.healthy;
    if (healthy) {
      log_info("healthy again");
    } else {
      log_error("not healthy: {}", health.detail);
    }
  }
}

void drain(ApiServer& api, Engine& engine, double seconds) {
  log_info("stopping: running requests get up to {} s; another signal, a second later, ends them",
           seconds);
  api.begin_drain();
  if (auto drained = engine.drain(static_cast<Nanoseconds>(seconds * 1e9)); !drained) {
    log_warn("{}", drained.error().message);
  }
  if (const int cut = api.stop(kFlushLimit); cut > 0) log_warn("cut {} connections", cut);
  log_info("stopped");
}

Result<void> serve(const ServeFlags& flags) {
  EXPERTPLEX_TRY(init_logging(flags.engine.log_level));
  EXPERTPLEX_ASSIGN(const EngineConfig config, engine_config(flags.engine));
  std::signal(SIGPIPE, SIG_IGN);
  raise_open_file_limit();

  // Listening first: a port in use is known before a model is loaded, and probes get 503 meanwhile.
  ApiOptions options;
  options.http.host = flags.host;
  options.http.port = flags.port;
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend();
  std::unique_ptr<Engine> engine;  // outlives `api`
  EXPERTPLEX_ASSIGN(const auto api, ApiServer::start(options));

  EXPERTPLEX_ASSIGN(const LoadedModel model, load_model(flags.engine.model));
  EXPERTPLEX_ASSIGN(const SamplingDefaults defaults, sampling_defaults(flags, model));
  EXPERTPLEX_ASSIGN(engine,
                    Engine::create(config, model.spec, model.weights, model.tokenizer, *backend));
  ServedModel served = describe_model(model, flags.served_names, engine->max_model_len());
  served.sampling_defaults = defaults;
  StopSignal::install();
  api->attach(*engine, served);
  print_ready(flags.host, api->port(), served);

  watch(*engine);
  drain(*api, *engine, flags.drain_seconds);
  return {};
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("serve", "Serve a model over an OpenAI-compatible HTTP API");
  const auto flags = std::make_shared<ServeFlags>();
  verb->footer(kFooter);
  add_model_flags(*verb, flags->engine);
  verb->add_option("--host", flags->host, "Address to listen on; 0.0.0.0 for all")
      ->capture_default_str()
      ->type_name("ADDRESS");
  verb->add_option("--port", flags->port, "Port to listen on; 0: a free one, which is printed")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->type_name("N");
  verb->add_option("--served-model-name", flags->served_names,
                   "Names that requests may use; the directory's name if left out")
      ->check(is_model_name)
      ->type_name("NAME...");
  verb->add_option("--generation-config", flags->generation_config,
                   "Sampling defaults of requests: auto (the model's generation_config.json) or "
                   "none (OpenAI's: temperature 1, top_p 1, no top_k)")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str()
      ->type_name("auto|none");
  verb->add_option("--drain-seconds", flags->drain_seconds,
                   "How long running requests may take after SIGTERM")
      ->check(is_drain_seconds)
      ->capture_default_str()
      ->type_name("S");
  add_engine_flags(*verb, flags->engine);
  verb->callback([flags, &exit_code] { exit_code = exit_code_of(serve(*flags)); });
}

}  // namespace expertplex::cli
