#include "cli/loaded_model.h"

#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "cli/model_directory.h"
#include "serving/memory_plan.h"

namespace expertplex::cli {
namespace {

constexpr int kBarColumns = 40;
constexpr Nanoseconds kBarInterval = 100 * kMillisecond;
constexpr Nanoseconds kLineInterval = 5 * kSecond;

// Shows how far the weights are.
class ProgressReport {
 public:
  ~ProgressReport() {
    if (bar_shown_) fmt::print(stderr, "\r\033[K");
  }

  void update(int64_t done, int64_t total) {
    const Nanoseconds now = now_ns();
    if (now - last_ < (is_terminal_ ? kBarInterval : kLineInterval) || total <= 0) return;
    last_ = now;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    if (!is_terminal_) {
      log_info("loading weights: {:.0f} % of {}", share * 100, format_bytes(total));
      return;
    }
    const int filled = static_cast<int>(share * kBarColumns);
    fmt::print(stderr, "\rloading weights [{:=<{}}{:{}}] {:3.0f} % of {}", "", filled, "",
               kBarColumns - filled, share * 100, format_bytes(total));
    std::fflush(stderr);
    bar_shown_ = true;
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  bool bar_shown_ = false;
  Nanoseconds last_ = now_ns();
};

void load_chat_template(LoadedModel& model) {
  if (model.tokenizer->chat_template().empty()) {
    model.chat_template_problem = "the model directory has none";
    return;
  }
  auto parsed = ChatTemplate::parse(model.tokenizer->chat_template());
  if (parsed) {
    model.chat_template = std::move(*parsed);
    return;
  }
  model.chat_template_problem = parsed.error().message;
  log_warn("chat is off: the model's chat template cannot be used: {}", parsed.error().message);
}

}  // namespace

Result<LoadedModel> load_model(const std::string& given) {
  LoadedModel model;
  EXPERTPLEX_ASSIGN(model.directory, find_model_directory(given));
  EXPERTPLEX_ASSIGN(model.spec, load_model_spec(model.directory));
  EXPERTPLEX_ASSIGN(model.tokenizer, Tokenizer::load(model.directory));
  load_chat_template(model);
  ProgressReport progress;
  EXPERTPLEX_ASSIGN(model.weights, load_model_weights(model.directory, model.spec,
                                                      [&](int64_t done, int64_t total) {
                                                        progress.update(done, total);
                                                      }));
  return model;
}

}  // namespace expertplex::cli
