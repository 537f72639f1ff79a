// PrefillServer: the thread of one prefill attention server. It takes batches of prompts from the
// core, runs them, puts each layer's KV pages to the decode servers as the layer is done, and
// exchanges the handoff words. Between iterations without work it is parked on its window's bell.
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

class PrefillServer {
 public:
  struct Parts {
    int index = 0;
    std::string name;
    std::shared_ptr<transport::Window> window;
    std::unique_ptr<AttentionExecutor> executor;
    std::vector<transport::KvSender> senders;  // per decode server
    int niceness = 0;                          // of the thread
  };

  PrefillServer(Parts parts, EngineHub& hub);
  ~PrefillServer();

  void start();
  // Ends a running iteration and the loop.
  void request_stop();
  void join();

 private:
  void run();
  void lower_priority() const;
  void exchange_words();
  void run_iteration(const Batch& batch);
  void put_layer(const Batch& batch, int layer);

  Parts parts_;
  EngineHub& hub_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace expertplex
