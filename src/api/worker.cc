#include "api/worker.h"

#include <pthread.h>

#include <exception>

#include "base/log.h"

namespace expertplex {

Worker::Worker(size_t max_queued) : max_queued_(max_queued), thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Worker::submit(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() >= max_queued_) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void Worker::run() {
  pthread_setname_np(pthread_self(), "tokenizer");
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job();
    } catch (const std::exception& e) {
      log_error("tokenizer thread: {}", e.what());
    }
  }
}

}  // namespace expertplex
