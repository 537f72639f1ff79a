#include "api/fake_engine.h"

#include <chrono>
#include <utility>

namespace expertplex::testing {
namespace {

Histogram seconds_histogram() {
  Histogram histogram;
  histogram.bounds = {0.001, 0.5, 2};
  histogram.counts = {1, 2, 0, 1};
  histogram.sum = 7.25;
  histogram.count = 4;
  return histogram;
}

}  // namespace

FakeEngine::FakeEngine(int max_model_len) : max_model_len_(max_model_len) {
  statistics_.kv_pages_total = 100;
  for (Histogram* histogram :
       {&statistics_.ttft_seconds, &statistics_.itl_seconds, &statistics_.tpot_seconds,
        &statistics_.e2e_seconds, &statistics_.queue_seconds, &statistics_.prefill_seconds,
        &statistics_.decode_seconds, &statistics_.prompt_length, &statistics_.generation_length,
        &statistics_.iteration_tokens}) {
    *histogram = seconds_histogram();
  }
  statistics_.moe.resize(2);
  statistics_.moe[1].decode_tiles = 42;
  statistics_.moe[1].preemptions = 3;
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeEngine::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeEngine::release() {
  {
    const std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

void FakeEngine::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || (!held_ && !running_.empty()); });
      if (stopping_) return;
    }
    step();
  }
}

void FakeEngine::step() {
  const std::lock_guard one_step(step_mutex_);
  std::vector<std::pair<std::shared_ptr<GenerationSink>, GenerationUpdate>> updates;
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<RequestId, FinishReason>> finished;
    for (auto& [id, request] : running_) {
      GenerationUpdate update;
      if (request.next < request.script.pieces.size()) {
        update.text = request.script.pieces[request.next++];
      }
      update.prompt_tokens = request.prompt_tokens;
      update.completion_tokens = static_cast<int>(request.next);
      if (request.next >= request.script.pieces.size()) {
        update.finish = request.script.finish;
        update.error = request.script.error;
        finished.emplace_back(id, update.finish);
      }
      updates.emplace_back(request.sink, std::move(update));
    }
    for (const auto& [id, reason] : finished) finish(id, reason);
  }
  for (auto& [sink, update] : updates) sink->on_update(std::move(update));
}

void FakeEngine::finish(RequestId id, FinishReason reason) {
  running_.erase(id);
  if (reason == FinishReason::kStop) ++statistics_.finished_stop;
  if (reason == FinishReason::kLength) ++statistics_.finished_length;
  if (reason == FinishReason::kCancelled) ++statistics_.finished_cancelled;
  if (reason == FinishReason::kError) ++statistics_.finished_error;
  changed_.notify_all();
}

void FakeEngine::set_queue_limit(int limit) {
  const std::lock_guard lock(mutex_);
  queue_limit_ = limit;
}

void FakeEngine::set_health(Health health) {
  const std::lock_guard lock(mutex_);
  health_ = std::move(health);
}

std::vector<GenerationRequest> FakeEngine::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

int FakeEngine::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(running_.size());
}

bool FakeEngine::wait_for_running(int count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(30),
                           [&] { return static_cast<int>(running_.size()) == count; });
}

Result<RequestId> FakeEngine::submit(GenerationRequest request,
                                     std::shared_ptr<GenerationSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  EXPERTPLEX_ASSIGN(const std::vector<RequestId> ids, submit_all(std::move(one)));
  return ids.front();
}

Result<std::vector<RequestId>> FakeEngine::submit_all(std::vector<Submission> submissions) {
  std::vector<Script> answers;
  for (const Submission& submission : submissions) {
    answers.push_back(script ? script(submission.request) : Script{});
  }
  const std::lock_guard lock(mutex_);
  if (draining_) return make_error(ErrorCode::kUnavailable, "the engine is draining");
  if (running_.size() + submissions.size() > static_cast<size_t>(queue_limit_)) {
    ++statistics_.rejected_queue_full;
    return make_error(ErrorCode::kResourceExhausted, "the queue is full: {} requests wait",
                      queue_limit_);
  }
  std::vector<RequestId> ids;
  for (size_t i = 0; i < submissions.size(); ++i) {
    auto& [request, sink] = submissions[i];
    ids.push_back(RequestId{next_id_++});
    running_[ids.back()] = {answers[i], std::move(sink), static_cast<int>(request.prompt.size()),
                            0};
    submitted_.push_back(std::move(request));
  }
  changed_.notify_all();
  return ids;
}

void FakeEngine::cancel(RequestId id) {
  std::shared_ptr<GenerationSink> sink;
  {
    const std::lock_guard lock(mutex_);
    const auto it = running_.find(id);
    if (it == running_.end()) return;
    sink = it->second.sink;
    finish(id, FinishReason::kCancelled);
  }
  GenerationUpdate update;
  update.finish = FinishReason::kCancelled;
  sink->on_update(std::move(update));
}

Result<void> FakeEngine::drain(Nanoseconds limit) {
  std::vector<RequestId> left;
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    changed_.wait_for(lock, std::chrono::nanoseconds(limit), [this] { return running_.empty(); });
    for (const auto& [id, request] : running_) left.push_back(id);
  }
  for (const RequestId id : left) cancel(id);
  return {};
}

EngineStatistics FakeEngine::statistics() const {
  const std::lock_guard lock(mutex_);
  EngineStatistics statistics = statistics_;
  statistics.running = static_cast<int>(running_.size());
  statistics.kv_pages_used = statistics.running * 2;
  return statistics;
}

Health FakeEngine::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

}  // namespace expertplex::testing
