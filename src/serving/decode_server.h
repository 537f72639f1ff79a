// DecodeServer: the thread of one decode attention server. Between iterations it takes the KV
// handoffs that have arrived; then it takes its part in the group's next iteration: its sequences,
// or, while only other members have some, nothing. Without work it is parked on its window's bell.
//
// Thread rules: start, request_stop and join from one thread; the window's bell from any.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/attention_executor.h"
#include "serving/engine_hub.h"
#include "transport/kv_handoff.h"

namespace expertplex {

class DecodeServer {
 public:
  struct Parts {
    int index = 0;
    std::string name;
    std::shared_ptr<transport::Window> window;
    std::unique_ptr<AttentionExecutor> executor;
    std::vector<transport::KvReceiver> receivers;  // per prefill server
  };

  DecodeServer(Parts parts, EngineHub& hub);
  ~DecodeServer();

  void start();
  // Ends a running iteration and the loop.
  void request_stop();
  void join();

 private:
  void run();
  void take_handoffs();
  void run_iteration(const Batch& batch);
  Result<IterationOutput> execute(const Batch& batch);

  Parts parts_;
  EngineHub& hub_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace expertplex
