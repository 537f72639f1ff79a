#include "api/engine_sink.h"

#include <utility>

namespace expertplex {
namespace {

void merge(GenerationUpdate& into, GenerationUpdate update) {
  into.text += update.text;
  into.tokens.insert(into.tokens.end(), update.tokens.begin(), update.tokens.end());
  into.finish = update.finish;
  into.error = std::move(update.error);
  into.prompt_tokens = update.prompt_tokens;
  into.completion_tokens = update.completion_tokens;
}

}  // namespace

void EngineSink::on_update(GenerationUpdate update) {
  {
    const std::lock_guard lock(mutex_);
    if (pending_) return merge(*pending_, std::move(update));
    pending_ = std::move(update);
  }
  loop_->post([self = shared_from_this()] { self->deliver(); });
}

void EngineSink::deliver() {
  std::optional<GenerationUpdate> update;
  {
    const std::lock_guard lock(mutex_);
    update = std::exchange(pending_, std::nullopt);
  }
  if (update) receiver_(std::move(*update));
}

}  // namespace expertplex
