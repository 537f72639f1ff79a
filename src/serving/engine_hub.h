// EngineHub: EngineCore among threads. step() runs a function on the core under one lock;
// afterwards, outside it, servers that may have work are woken and users' sinks are called. A
// request's updates reach its sink in order and one at a time, whichever threads they come from: a
// thread that finds another one delivering leaves its update to that one. So a sink may call
// cancel().
//
// Thread rules: all members may be called from any thread; set_bell before the threads start. Steps
// must be short: no computing, no waiting.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "serving/engine_core.h"

namespace expertplex {

class EngineHub {
 public:
  explicit EngineHub(const EngineCoreConfig& config);

  // How to wake a server: rings the bell that it parks on.
  void set_bell(AttentionServerId server, std::function<void()> ring);

  template <typename Function>
  auto step(Function&& function) {
    std::unique_lock lock(mutex_);
    if constexpr (std::is_void_v<std::invoke_result_t<Function, EngineCore&>>) {
      function(core_);
      finish_step(lock);
    } else {
      auto result = function(core_);
      finish_step(lock);
      return result;
    }
  }
  // Only looks: no updates, no wakeups.
  template <typename Function>
  auto look(Function&& function) const {
    std::unique_lock lock(mutex_);
    return function(core_);
  }

  // One sink per request.
  Result<std::vector<RequestId>> submit_all(std::vector<NewRequest> requests,
                                            std::vector<std::shared_ptr<GenerationSink>> sinks,
                                            Nanoseconds now);

  // Waits until nobody runs, nothing is held and every last update is delivered, or the limit
  // passes.
  bool wait_idle(Nanoseconds limit);

 private:
  struct Outbox {
    std::shared_ptr<GenerationSink> sink;
    std::vector<GenerationUpdate> pending;
    bool delivering = false;
  };

  // Unlocks; wakes and delivers.
  void finish_step(std::unique_lock<std::mutex>& lock);
  void deliver(RequestId id);

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  EngineCore core_;
  std::map<RequestId, Outbox> outboxes_;
  std::vector<std::function<void()>> prefill_bells_, decode_bells_;
};

}  // namespace expertplex
