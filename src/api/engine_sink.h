// EngineSink: brings a request's updates from the engine's threads to the io thread. Updates that
// arrive while the io thread is busy are merged, so a slow loop gets fewer and larger ones.
//
// Thread rules: on_update from engine threads; the receiver runs on the io thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "api/http_types.h"
#include "serving/engine.h"

namespace expertplex {

class EngineSink final : public GenerationSink, public std::enable_shared_from_this<EngineSink> {
 public:
  using Receiver = std::function<void(GenerationUpdate)>;

  EngineSink(std::shared_ptr<IoLoop> loop, Receiver receiver)
      : loop_(std::move(loop)), receiver_(std::move(receiver)) {}

  void on_update(GenerationUpdate update) override;

 private:
  void deliver();

  const std::shared_ptr<IoLoop> loop_;
  const Receiver receiver_;
  std::mutex mutex_;
  std::optional<GenerationUpdate> pending_;  // guarded; set: a delivery is on its way
};

}  // namespace expertplex
