#include "serving/decode_server.h"

#include "base/log.h"

namespace expertplex {
namespace {

constexpr Nanoseconds kLookInterval = kSecond;

}  // namespace

DecodeServer::DecodeServer(Parts parts, EngineHub& hub) : parts_(std::move(parts)), hub_(hub) {
  hub_.set_bell({apk::Phase::kDecode, parts_.index},
                [window = parts_.window] { window->ring(transport::kKvBell); });
}

DecodeServer::~DecodeServer() {
  request_stop();
  join();
}

void DecodeServer::start() {
  thread_ = std::thread([this] { run(); });
}

void DecodeServer::request_stop() {
  stopping_.store(true);
  parts_.executor->abort();
  parts_.window->ring(transport::kKvBell);
}

void DecodeServer::join() {
  if (thread_.joinable()) thread_.join();
}

void DecodeServer::run() {
  while (!stopping_.load()) {
    const uint32_t ticket = parts_.window->bell_ticket(transport::kKvBell);
    take_handoffs();
    const auto batch =
        hub_.step([&](EngineCore& core) { return core.next_decode(parts_.index, now_ns()); });
    if (batch) {
      run_iteration(*batch);
    } else {
      parts_.window->park(transport::kKvBell, ticket, kLookInterval);
    }
  }
}

void DecodeServer::take_handoffs() {
  const auto expected =
      hub_.look([&](const EngineCore& core) { return core.expected_handoffs(parts_.index); });
  for (const Handoff& handoff : expected) {
    transport::KvReceiver& receiver = parts_.receivers[handoff.prefill_server];
    const auto tokens = receiver.arrived(handoff.slot.index, handoff.slot.epoch);
    if (!tokens && !receiver.cancelled(handoff.slot.index, handoff.slot.epoch)) continue;
    const bool taken = hub_.step([&](EngineCore& core) {
      return core.handoff_arrived(parts_.index, handoff.request, tokens.value_or(0), now_ns());
    });
    receiver.acknowledge(handoff.slot.index, handoff.slot.epoch, !taken);
  }
}

Result<IterationOutput> DecodeServer::execute(const Batch& batch) {
  if (batch.empty()) {
    EXPERTPLEX_TRY(parts_.executor->skip_iteration());
    return IterationOutput{};
  }
  const auto note_progress = [&](int) {
    hub_.step([&](EngineCore& core) { core.decode_begun(parts_.index, now_ns()); });
  };
  return parts_.executor->run_iteration({.phase = apk::Phase::kDecode,
                                         .tokens = batch.tokens,
                                         .sequences = batch.sequences,
                                         .on_layer_cached = note_progress});
}

void DecodeServer::run_iteration(const Batch& batch) {
  const auto output = execute(batch);
  if (output) {
    hub_.step(
        [&](EngineCore& core) { core.decode_done(parts_.index, output->next_tokens, now_ns()); });
    return;
  }
  if (!stopping_.load()) log_warn("{}: iteration failed: {}", parts_.name, output.error().message);
  hub_.step([&](EngineCore& core) { core.decode_failed(parts_.index, output.error(), now_ns()); });
}

}  // namespace expertplex
