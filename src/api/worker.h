// Worker: one thread for work that grows with a request's body (JSON, chat template, tokeniser), so
// that a long prompt does not hold up the streams of others. Its queue is bounded.
//
// Thread rules: submit from any thread; jobs run one after the other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace expertplex {

class Worker {
 public:
  explicit Worker(size_t max_queued);
  // Finishes the job that runs; those still queued are dropped.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False when the queue is full.
  bool submit(std::function<void()> job);

 private:
  void run();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace expertplex
