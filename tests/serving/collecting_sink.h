// CollectingSink: keeps what one request was sent, checks the contract of GenerationSink (order,
// one call at a time, exactly one last update), and lets a test wait for the end.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "serving/engine.h"

namespace expertplex {

class CollectingSink final : public GenerationSink {
 public:
  void on_update(GenerationUpdate update) override {
    EXPECT_FALSE(inside_.exchange(true)) << "two updates at a time";
    std::function<void()> hook;
    {
      std::lock_guard lock(mutex_);
      EXPECT_EQ(finish_, FinishReason::kNone) << "an update after the last one";
      tokens_.insert(tokens_.end(), update.tokens.begin(), update.tokens.end());
      text_ += update.text;
      EXPECT_EQ(update.completion_tokens, static_cast<int>(tokens_.size()));
      finish_ = update.finish;
      if (update.error) error_ = *update.error;
      if (static_cast<int>(tokens_.size()) >= hook_at_) hook = std::exchange(hook_, nullptr);
    }
    inside_.store(false);
    changed_.notify_all();
    if (hook) hook();
  }

  // Runs from inside the sink once that many tokens are there.
  void at_tokens(int count, std::function<void()> hook) {
    std::lock_guard lock(mutex_);
    hook_at_ = count;
    hook_ = std::move(hook);
  }

  FinishReason wait(int seconds = 60) {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, std::chrono::seconds(seconds),
                                         [this] { return finish_ != FinishReason::kNone; });
    EXPECT_TRUE(ended) << "no end after " << seconds << " s, " << tokens_.size() << " tokens";
    return finish_;
  }
  void wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      return tokens_.size() >= count || finish_ != FinishReason::kNone;
    }));
  }

  std::vector<int32_t> tokens() const {
    std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }
  Error error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }
  FinishReason finish() const {
    std::lock_guard lock(mutex_);
    return finish_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> inside_{false};
  std::vector<int32_t> tokens_;
  std::string text_;
  FinishReason finish_ = FinishReason::kNone;
  Error error_;
  int hook_at_ = 1 << 30;
  std::function<void()> hook_;
};

}  // namespace expertplex
