#include "serving/engine_hub.h"

#include <chrono>

#include "base/check.h"

namespace expertplex {

EngineHub::EngineHub(const EngineCoreConfig& config)
    : core_(config),
      prefill_bells_(config.admission.prefill_servers),
      decode_bells_(config.admission.decode_servers) {}

void EngineHub::set_bell(AttentionServerId server, std::function<void()> ring) {
  auto& bells = server.phase == apk::Phase::kPrefill ? prefill_bells_ : decode_bells_;
  bells[server.index] = std::move(ring);
}

Result<std::vector<RequestId>> EngineHub::submit_all(
    std::vector<NewRequest> requests, std::vector<std::shared_ptr<GenerationSink>> sinks,
    Nanoseconds now) {
  return step([&](EngineCore& core) {
    auto ids = core.submit_all(std::move(requests), now);
    if (!ids) return ids;
    for (size_t i = 0; i < ids->size(); ++i) {
      EXPERTPLEX_CHECK(sinks[i] != nullptr);
      outboxes_[(*ids)[i]].sink = std::move(sinks[i]);
    }
    return ids;
  });
}

void EngineHub::finish_step(std::unique_lock<std::mutex>& lock) {
  const std::vector<AttentionServerId> wakeups = core_.take_wakeups();
  std::vector<RequestId> addressed;
  for (CoreUpdate& update : core_.take_updates()) {
    outboxes_.at(update.id).pending.push_back(std::move(update.update));
    addressed.push_back(update.id);
  }
  const bool idle = core_.idle();
  lock.unlock();
  for (const AttentionServerId server : wakeups) {
    const auto& bells = server.phase == apk::Phase::kPrefill ? prefill_bells_ : decode_bells_;
    if (bells[server.index]) bells[server.index]();
  }
  for (const RequestId id : addressed) deliver(id);
  if (idle) idle_.notify_all();
}

void EngineHub::deliver(RequestId id) {
  std::shared_ptr<GenerationSink> sink;  // dies outside the lock
  std::unique_lock lock(mutex_);
  const auto it = outboxes_.find(id);
  if (it == outboxes_.end() || it->second.delivering) return;
  Outbox& outbox = it->second;
  outbox.delivering = true;
  sink = outbox.sink;
  bool last = false;
  while (!outbox.pending.empty()) {
    std::vector<GenerationUpdate> updates = std::exchange(outbox.pending, {});
    lock.unlock();
    for (GenerationUpdate& update : updates) {
      last |= update.finish != FinishReason::kNone;
      sink->on_update(std::move(update));
    }
    lock.lock();
  }
  outbox.delivering = false;
  if (!last) return;
  outboxes_.erase(it);
  if (outboxes_.empty()) idle_.notify_all();
}

bool EngineHub::wait_idle(Nanoseconds limit) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::nanoseconds(limit),
                        [this] { return core_.idle() && outboxes_.empty(); });
}

}  // namespace expertplex
