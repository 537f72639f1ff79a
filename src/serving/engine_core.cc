// Users' side of EngineCore: submit, cancel, updates, what is held and given back. The servers'
// side is in engine_core_servers.cc.
#include "serving/engine_core.h"

#include <algorithm>

#include "backend/kv_cache.h"
#include "base/check.h"
#include "serving/statistics.h"

namespace expertplex {

EngineCore::EngineCore(const EngineCoreConfig& config)
    : config_(config),
      admission_(config.admission),
      prefill_(config.admission.prefill_servers, PrefillState(config.max_prefill_tokens)),
      decode_(config.admission.decode_servers, DecodeState(config.max_decode_batch)),
      group_(config.admission.decode_servers),
      statistics_(make_statistics(config.max_model_len)) {}

Result<int> EngineCore::resolve_max_tokens(const GenerationRequest& request) const {
  const int prompt = static_cast<int>(request.prompt.size());
  if (prompt == 0) return make_error(ErrorCode::kInvalidArgument, "prompt: must not be empty");
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= config_.vocab_size) {
      return make_error(ErrorCode::kInvalidArgument,
                        "prompt: token id {} is out of range, the vocabulary has {} ids", token,
                        config_.vocab_size);
    }
  }
  EXPERTPLEX_TRY(validate(request.sampling));
  const int rest = config_.max_model_len - prompt;
  const int max_tokens = request.sampling.max_tokens.value_or(std::max(rest, 1));
  if (rest < 1 || max_tokens > rest) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "This model's maximum context length is {} tokens. However, you requested {} "
        "tokens ({} in the prompt, {} in the completion). Please reduce the length of "
        "the prompt or max_tokens.",
        config_.max_model_len, int64_t{prompt} + max_tokens, prompt, max_tokens);
  }
  if (!admission_.can_ever_fit(prompt, max_tokens)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} prompt and {} completion tokens need more than the {} prefill and {} decode "
        "KV cache pages of {} tokens; reduce the prompt or max_tokens",
        prompt, max_tokens, config_.admission.prefill_pages, config_.admission.decode_pages,
        kKvPageTokens);
  }
  return max_tokens;
}

Result<RequestId> EngineCore::submit(GenerationRequest generation, std::unique_ptr<TextStream> text,
                                     Nanoseconds now) {
  std::vector<NewRequest> one;
  one.push_back({std::move(generation), std::move(text)});
  EXPERTPLEX_ASSIGN(const std::vector<RequestId> ids, submit_all(std::move(one), now));
  return ids.front();
}

Result<std::vector<RequestId>> EngineCore::submit_all(std::vector<NewRequest> requests,
                                                      Nanoseconds now) {
  if (!accepting_) return make_error(ErrorCode::kUnavailable, "the server is shutting down");
  std::vector<int> max_tokens;
  max_tokens.reserve(requests.size());
  for (const NewRequest& request : requests) {
    EXPERTPLEX_ASSIGN(const int resolved, resolve_max_tokens(request.generation));
    max_tokens.push_back(resolved);
  }
  EXPERTPLEX_TRY(check_room(requests.size()));
  std::vector<RequestId> ids;
  ids.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(enqueue(std::move(requests[i]), max_tokens[i], now));
  }
  admit(now);
  return ids;
}

Result<void> EngineCore::check_room(size_t count) {
  const size_t capacity = static_cast<size_t>(config_.admission.max_queued);
  if (count > capacity) {
    return make_error(ErrorCode::kInvalidArgument,
                      "this request makes {} sequences, the queue holds {}; send fewer prompts or "
                      "a smaller n",
                      count, capacity);
  }
  if (admission_.has_room(count)) return {};
  const int queued = admission_.queued();
  ++statistics_.rejected_queue_full;
  if (count == 1) {
    return make_error(ErrorCode::kResourceExhausted,
                      "the queue is full ({} requests are waiting); retry later", queued);
  }
  return make_error(ErrorCode::kResourceExhausted,
                    "the queue has no room for {} sequences ({} of {} places are taken); retry "
                    "later",
                    count, queued, capacity);
}

RequestId EngineCore::enqueue(NewRequest added, int max_tokens, Nanoseconds now) {
  OutputProcessor output(added.generation.sampling, max_tokens, config_.eos_tokens,
                         std::move(added.text));
  const RequestId id{next_id_++};
  auto request = std::make_unique<Request>(id, std::move(added.generation), std::move(output));
  request->max_tokens = max_tokens;
  request->submitted_at = now;
  admission_.push(request.get());
  requests_.emplace(id, std::move(request));
  return id;
}

void EngineCore::admit(Nanoseconds now) {
  for (;;) {
    std::vector<int64_t> load;
    for (const PrefillState& server : prefill_) load.push_back(server.batcher.pending_tokens());
    Request* request = admission_.admit(load);
    if (request == nullptr) return;
    PrefillState& server = prefill_[request->prefill_server];
    if (!has_work(server)) server.moved_at = now;
    server.batcher.push(request);
    ++running_;
    wake({apk::Phase::kPrefill, request->prefill_server});
  }
}

void EngineCore::cancel(RequestId id, Nanoseconds now) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->ended()) return;
  end(*it->second, FinishReason::kCancelled, std::nullopt, now);
}

void EngineCore::cancel_all(Nanoseconds now) {
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (RequestId id : ids) cancel(id, now);
}

// A sampled token: the user sees it at once.
void EngineCore::take_token(Request& request, int32_t token, Nanoseconds now) {
  const bool first = request.output.token_count() == 0;
  if (first) {
    request.first_token_at = now;
    statistics_.ttft_seconds.observe(to_seconds(now - request.accepted_at));
  } else {
    statistics_.itl_seconds.observe(to_seconds(now - request.last_token_at));
  }
  request.last_token_at = now;
  request.last_token = token;
  ++statistics_.generation_tokens;

  OutputProcessor::Step step = request.output.push(token);
  updates_.push_back(
      {request.id, GenerationUpdate{.text = std::move(step.text),
                                    .tokens = {token},
                                    .finish = step.finish,
                                    .error = std::nullopt,
                                    .prompt_tokens = request.prompt_size(),
                                    .completion_tokens = request.output.token_count()}});
  if (step.finish != FinishReason::kNone) mark_ended(request, step.finish, now);
}

// Ends a request from outside its token stream: cancel or error.
void EngineCore::end(Request& request, FinishReason reason, std::optional<Error> error,
                     Nanoseconds now) {
  EXPERTPLEX_CHECK(!request.ended());
  updates_.push_back(
      {request.id, GenerationUpdate{.text = {},
                                    .tokens = {},
                                    .finish = reason,
                                    .error = std::move(error),
                                    .prompt_tokens = request.prompt_size(),
                                    .completion_tokens = request.output.token_count()}});
  mark_ended(request, reason, now);
  wind_down(request, now);
}

void EngineCore::mark_ended(Request& request, FinishReason reason, Nanoseconds now) {
  EXPERTPLEX_CHECK(!request.ended());
  request.finish = reason;
  if (request.state != RequestState::kQueued) --running_;
  switch (reason) {
    case FinishReason::kStop:
      ++statistics_.finished_stop;
      break;
    case FinishReason::kLength:
      ++statistics_.finished_length;
      break;
    case FinishReason::kCancelled:
      ++statistics_.finished_cancelled;
      break;
    case FinishReason::kError:
      ++statistics_.finished_error;
      break;
    case FinishReason::kNone:
      EXPERTPLEX_CHECK(false, "ended with no reason");
  }
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    observe_finished(statistics_, request, now);
  }
}

// Takes an ended request out of what it waits for. While an iteration or a handoff works on its
// pages, the end of that work comes back here. May erase the request.
void EngineCore::wind_down(Request& request, Nanoseconds now) {
  if (request.in_flight) return;
  switch (request.state) {
    case RequestState::kQueued:
      admission_.remove(&request);
      erase_if_released(request);
      break;
    case RequestState::kAdmitted:
      prefill_[request.prefill_server].batcher.remove(&request);
      admission_.release_prefill_half(request);
      admission_.release_decode_half(request);
      erase_if_released(request);
      break;
    case RequestState::kPrefilling:
      prefill_[request.prefill_server].batcher.remove(&request);
      begin_handoff(request, now);
      return;
    case RequestState::kHandingOff:
      return;
    case RequestState::kDecoding:
      decode_[request.decode_server].batcher.leave(&request);
      release_decode_half(request);
      break;
  }
  admit(now);
}

void EngineCore::release_prefill_half(Request& request) {
  admission_.release_prefill_half(request);
  erase_if_released(request);
}

void EngineCore::release_decode_half(Request& request) {
  admission_.release_decode_half(request);
  erase_if_released(request);
}

void EngineCore::erase_if_released(Request& request) {
  if (!request.prefill_pages.empty() || !request.decode_pages.empty()) return;
  EXPERTPLEX_CHECK(request.ended(), "request {} lost its pages", request.id.value);
  requests_.erase(RequestId(request.id));
}

Request& EngineCore::find(RequestId id) {
  const auto it = requests_.find(id);
  EXPERTPLEX_CHECK(it != requests_.end(), "request {} is not known", id.value);
  return *it->second;
}

void EngineCore::wake(AttentionServerId server) {
  if (std::find(wakeups_.begin(), wakeups_.end(), server) == wakeups_.end()) {
    wakeups_.push_back(server);
  }
}

EngineStatistics EngineCore::statistics() const {
  EngineStatistics statistics = statistics_;
  statistics.running = running_;
  statistics.waiting = admission_.queued();
  statistics.kv_pages_used = admission_.pages_used();
  statistics.kv_pages_total = admission_.pages_total();
  statistics.handoff_slots_used = admission_.slots_used();
  return statistics;
}

}  // namespace expertplex
