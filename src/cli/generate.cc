// `expertplex generate`: one prompt, its text streamed to stdout.
#include <CLI/CLI.hpp>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <iterator>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "cli/engine_flags.h"
#include "cli/loaded_model.h"
#include "cli/verbs.h"
#include "cpu/cpu_backend.h"

namespace expertplex::cli {
namespace {

// Between two tokens; the engine has shorter limits of its own, which say more.
constexpr Nanoseconds kUpdateLimit = 600 * kSecond;

constexpr const char* kFooter =
    "\nExamples:\n"
    "  expertplex generate \"The history of\" --max-tokens 40\n"
    "  expertplex generate --chat \"What is a compiler?\" --temperature 0.7 --seed 1\n"
    "  cat article.txt | expertplex generate --stats > continuation.txt";

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt;
  bool prompt_given = false;
  bool chat = false;
  std::string system;
  int max_tokens = 128;
  SamplingParams sampling;
  std::vector<std::string> stop;
  std::optional<int64_t> seed;
  bool stats = false;
};

// Hands updates from the engine's threads to the main thread.
class UpdateQueue final : public GenerationSink {
 public:
  void on_update(GenerationUpdate update) override {
    {
      const std::lock_guard lock(mutex_);
      updates_.push_back(std::move(update));
    }
    changed_.notify_one();
  }

  std::optional<GenerationUpdate> next() {
    std::unique_lock lock(mutex_);
    const bool any = changed_.wait_for(lock, std::chrono::nanoseconds(kUpdateLimit),
                                       [this] { return !updates_.empty(); });
    if (!any) return {};
    GenerationUpdate update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<GenerationUpdate> updates_;
};

Result<std::vector<int32_t>> tokenise(const GenerateFlags& flags, const std::string& text,
                                      const LoadedModel& model) {
  if (!flags.chat) return model.tokenizer->encode(text, true, true);
  if (!model.chat_template) {
    return make_error(ErrorCode::kInvalidArgument, "--chat needs a chat template: {}",
                      model.chat_template_problem);
  }
  Json messages = Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  EXPERTPLEX_ASSIGN(const std::string rendered,
                    model.chat_template->render({{"messages", messages},
                                                 {"add_generation_prompt", true},
                                                 {"bos_token", model.tokenizer->bos_token()},
                                                 {"eos_token", model.tokenizer->eos_token()},
                                                 {"tools", nullptr}}));
  return model.tokenizer->encode(rendered, true);
}

// All of it but the newline that ends a text file or an echo.
std::string read_prompt(std::istream& stream) {
  std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!text.ends_with('\n')) return text;
  text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

SamplingParams sampling_of(const GenerateFlags& flags) {
  SamplingParams sampling = flags.sampling;
  sampling.max_tokens = flags.max_tokens;
  sampling.stop = flags.stop;
  if (flags.seed) sampling.seed = static_cast<uint64_t>(*flags.seed);
  return sampling;
}

// Streams the answer to stdout and the timing, if asked for, to stderr.
Result<void> print_answer(UpdateQueue& updates, Nanoseconds submitted_at, bool stats) {
  Nanoseconds first_at = 0;
  while (true) {
    const auto update = updates.next();
    if (!update) {
      return make_error(ErrorCode::kDeadlineExceeded, "no token within {} s",
                        to_seconds(kUpdateLimit));
    }
    if (first_at == 0) first_at = now_ns();
    EXPERTPLEX_TRY(write_stdout(update->text));
    if (update->finish == FinishReason::kNone) continue;
    EXPERTPLEX_TRY(write_stdout("\n"));
    if (update->error) return *update->error;
    if (!stats) return {};
    const double decode_seconds = to_seconds(now_ns() - first_at);
    const int decoded = update->completion_tokens - 1;
    fmt::print(stderr,
               "prompt {} tokens, first token after {:.1f} ms; answer {} tokens, {:.1f} tokens/s "
               "after the first\n",
               update->prompt_tokens, to_milliseconds(first_at - submitted_at),
               update->completion_tokens,
               decode_seconds > 0 ? static_cast<double>(decoded) / decode_seconds : 0.0);
    return {};
  }
}

Result<void> generate(const GenerateFlags& flags) {
  EXPERTPLEX_TRY(init_logging(flags.engine.log_level));
  EXPERTPLEX_ASSIGN(EngineConfig config, engine_config(flags.engine));
  EXPERTPLEX_TRY(validate(sampling_of(flags)));
  std::string text = flags.prompt;
  if (!flags.prompt_given) text = read_prompt(std::cin);
  EXPERTPLEX_ASSIGN(const LoadedModel model, load_model(flags.engine.model));

  GenerationRequest request;
  EXPERTPLEX_ASSIGN(request.prompt, tokenise(flags, text, model));
  if (request.prompt.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has no tokens");
  }
  request.sampling = sampling_of(flags);
  config.max_decode_batch = 1;
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend();
  EXPERTPLEX_ASSIGN(const auto engine,
                    Engine::create(config, model.spec, model.weights, model.tokenizer, *backend));
  const auto updates = std::make_shared<UpdateQueue>();
  const Nanoseconds submitted_at = now_ns();
  EXPERTPLEX_TRY(engine->submit(std::move(request), updates));
  return print_answer(*updates, submitted_at, flags.stats);
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("generate", "Generate text for one prompt, without a server");
  const auto flags = std::make_shared<GenerateFlags>();
  SamplingParams& sampling = flags->sampling;
  sampling.temperature = 0;
  flags->engine.log_level = "warn";
  verb->footer(kFooter);
  CLI::Option* prompt =
      verb->add_option("prompt", flags->prompt, "The prompt; read from stdin if left out");
  CLI::Option* chat = verb->add_flag("--chat", flags->chat, "Apply the model's chat template");
  verb->add_option("--system", flags->system, "System message, with --chat")
      ->needs(chat)
      ->type_name("TEXT");
  verb->add_option("-n,--max-tokens", flags->max_tokens, "Longest answer")
      ->capture_default_str()
      ->type_name("N");
  verb->add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->type_name("T");
  verb->add_option("--top-p", sampling.top_p,
                   "Smallest set of tokens that reaches this probability")
      ->capture_default_str()
      ->type_name("P");
  verb->add_option("--top-k", sampling.top_k, "Only the K likeliest tokens; 0: all")
      ->capture_default_str()
      ->type_name("K");
  verb->add_option("--seed", flags->seed, "The same seed gives the same text")->type_name("N");
  verb->add_option("--stop", flags->stop, "Text that ends the answer; may be repeated")
      ->allow_extra_args(false)  // else it takes the prompt that follows
      ->type_name("TEXT");
  verb->add_flag("--ignore-eos", sampling.ignore_eos, "Do not end at the end-of-text token");
  verb->add_flag("--stats", flags->stats, "Print lengths and times to stderr");
  add_model_flags(*verb, flags->engine);
  add_engine_flags(*verb, flags->engine);
  verb->callback([flags, prompt, &exit_code] {
    flags->prompt_given = prompt->count() > 0;
    exit_code = exit_code_of(generate(*flags));
  });
}

}  // namespace expertplex::cli
