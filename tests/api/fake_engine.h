// FakeEngine: the engine that the API's tests drive. It answers from a script, piece by piece, on
// one thread of its own or step by step under the test's control, and keeps count of what it holds.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/engine.h"

namespace expertplex::testing {

// What a request is answered with: one update per piece, the last one carrying the finish.
struct Script {
  std::vector<std::string> pieces = {"Hello", ", ", "world"};
  FinishReason finish = FinishReason::kStop;
  std::optional<Error> error;  // with kError
};

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(int max_model_len = 128);
  ~FakeEngine() override;

  // The script of a request; Script{} unless set. Called on the submitting thread.
  std::function<Script(const GenerationRequest&)> script;

  // Held: nothing moves until step() or release().
  void hold();
  void release();
  // One update for every running request.
  void step();

  void set_queue_limit(int limit);
  void set_health(Health health);
  std::vector<GenerationRequest> submitted() const;
  int running() const;
  // Waits until the number of running requests is `count`; false after 30 s.
  bool wait_for_running(int count);

  Result<RequestId> submit(GenerationRequest request,
                           std::shared_ptr<GenerationSink> sink) override;
  Result<std::vector<RequestId>> submit_all(std::vector<Submission> submissions) override;
  void cancel(RequestId id) override;
  Result<void> drain(Nanoseconds limit) override;
  EngineStatistics statistics() const override;
  Health health() const override;
  int max_model_len() const override { return max_model_len_; }
  Json describe() const override { return {{"backend", "fake"}, {"layout", {{"moe_servers", 2}}}}; }

 private:
  struct Running {
    Script script;
    std::shared_ptr<GenerationSink> sink;
    int prompt_tokens = 0;
    size_t next = 0;
  };

  void run();
  void finish(RequestId id, FinishReason reason);  // counts; under the lock

  const int max_model_len_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::mutex step_mutex_;  // one step at a time, so that a request's updates keep their order
  std::map<RequestId, Running> running_;
  std::vector<GenerationRequest> submitted_;
  uint64_t next_id_ = 1;
  int queue_limit_ = 1000;
  bool held_ = false, draining_ = false, stopping_ = false;
  Health health_;
  EngineStatistics statistics_;
  std::thread thread_;
};

}  // namespace expertplex::testing
