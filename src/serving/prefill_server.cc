#include "serving/prefill_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

namespace expertplex {
namespace {

// Between two looks at limits when nothing rings.
constexpr Nanoseconds kLookInterval = kSecond;

}  // namespace

PrefillServer::PrefillServer(Parts parts, EngineHub& hub) : parts_(std::move(parts)), hub_(hub) {
  hub_.set_bell({apk::Phase::kPrefill, parts_.index},
                [window = parts_.window] { window->ring(transport::kKvBell); });
}

PrefillServer::~PrefillServer() {
  request_stop();
  join();
}

void PrefillServer::start() {
  thread_ = std::thread([this] { run(); });
}

void PrefillServer::request_stop() {
  stopping_.store(true);
  parts_.executor->abort();
  parts_.window->ring(transport::kKvBell);
}

void PrefillServer::join() {
  if (thread_.joinable()) thread_.join();
}

void PrefillServer::lower_priority() const {
  if (parts_.niceness == 0) return;
  const auto self = static_cast<id_t>(gettid());
  if (setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + parts_.niceness) != 0) {
    log_debug("{}: its priority stays as it is", parts_.name);
  }
}

void PrefillServer::run() {
  lower_priority();
  while (!stopping_.load()) {
    const uint32_t ticket = parts_.window->bell_ticket(transport::kKvBell);
    exchange_words();
    const auto batch =
        hub_.step([&](EngineCore& core) { return core.next_prefill(parts_.index, now_ns()); });
    if (batch) {
      run_iteration(*batch);
    } else {
      parts_.window->park(transport::kKvBell, ticket, kLookInterval);
    }
  }
}

void PrefillServer::exchange_words() {
  const auto to_publish = hub_.step([&](EngineCore& core) {
    core.expire_handoffs(parts_.index, now_ns());
    return core.take_handoffs_to_publish(parts_.index, now_ns());
  });
  for (const Handoff& handoff : to_publish) {
    transport::KvSender& sender = parts_.senders[handoff.decode_server];
    if (handoff.token_count > 0) {
      sender.publish(handoff.slot.index, handoff.slot.epoch, handoff.token_count);
    } else {
      sender.cancel(handoff.slot.index, handoff.slot.epoch);
    }
  }
  const auto open =
      hub_.look([&](const EngineCore& core) { return core.unacknowledged_handoffs(parts_.index); });
  for (const Handoff& handoff : open) {
    const transport::KvSender& sender = parts_.senders[handoff.decode_server];
    if (!sender.acknowledged(handoff.slot.index, handoff.slot.epoch)) continue;
    hub_.step([&](EngineCore& core) {
      core.handoff_acknowledged(parts_.index, handoff.request, now_ns());
    });
  }
}

void PrefillServer::put_layer(const Batch& batch, int layer) {
  for (const Batch::Puts& puts : batch.puts) {
    parts_.senders[puts.decode_server].put_pages(layer, puts.source, puts.destination);
  }
  hub_.step([&](EngineCore& core) {
    core.note_progress({apk::Phase::kPrefill, parts_.index}, now_ns());
  });
}

void PrefillServer::run_iteration(const Batch& batch) {
  const IterationInput input{.phase = apk::Phase::kPrefill,
                             .tokens = batch.tokens,
                             .sequences = batch.sequences,
                             .on_layer_cached = [&](int layer) { put_layer(batch, layer); }};
  const auto output = parts_.executor->run_iteration(input);
  if (output) {
    hub_.step(
        [&](EngineCore& core) { core.prefill_done(parts_.index, output->next_tokens, now_ns()); });
    return;
  }
  if (!stopping_.load()) log_warn("{}: iteration failed: {}", parts_.name, output.error().message);
  hub_.step([&](EngineCore& core) { core.prefill_failed(parts_.index, output.error(), now_ns()); });
}

}  // namespace expertplex
