#include "api/generation_call.h"

#include <exception>
#include <utility>

#include "api/engine_sink.h"
#include "api/unique_id.h"

namespace expertplex {
namespace {

const char* finish_name(FinishReason finish) {
  return finish == FinishReason::kLength ? "length" : "stop";
}

// What a client is told about a choice that did not end by itself; null if it did.
std::optional<ApiError> failure_of(const GenerationUpdate& update) {
  if (update.finish == FinishReason::kError) {
    return to_api_error(update.error.value_or(
        make_error(ErrorCode::kInternal, "the request failed inside the server")));
  }
  if (update.finish == FinishReason::kCancelled) {
    return to_api_error(make_error(ErrorCode::kCancelled,
                                   "the request was cancelled because the server is stopping"));
  }
  return {};
}

}  // namespace

GenerationCall::GenerationCall(Engine& engine, std::shared_ptr<Exchange> exchange,
                               PreparedRequest request, const std::string& model, int64_t created)
    : engine_(engine),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      format_(request_.kind, unique_id(request_.kind == AnswerKind::kChat ? "chatcmpl-" : "cmpl-"),
              created, model, request_.options.include_usage),
      choice_count_(request_.prompts.size() * static_cast<size_t>(request_.options.n)) {}

void GenerationCall::start(Engine& engine, std::shared_ptr<IoLoop> loop,
                           std::shared_ptr<Exchange> exchange, PreparedRequest request,
                           const std::string& model, int64_t created) {
  if (exchange->gone()) return;
  std::shared_ptr<GenerationCall> call(
      new GenerationCall(engine, std::move(exchange), std::move(request), model, created));
  call->exchange_->on_disconnect([weak = call->weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->cancel_unfinished();
      self->done_ = true;
    }
  });
  try {
    call->submit_all(loop);
  } catch (const std::exception& e) {
    call->fail(internal_error(e));
  }
}

void GenerationCall::submit_all(const std::shared_ptr<IoLoop>& loop) {
  std::vector<Submission> submissions;
  submissions.reserve(choice_count_);
  for (const PreparedPrompt& prompt : request_.prompts) {
    for (int i = 0; i < request_.options.n; ++i) {
      const size_t index = submissions.size();
      GenerationRequest generation;
      generation.prompt = prompt.tokens;
      generation.sampling = request_.options.sampling;
      if (generation.sampling.seed) *generation.sampling.seed += static_cast<uint64_t>(i);
      generation.accepted_at = exchange_->request().accepted_at;
      // The sink keeps the call alive until the engine lets go of it.
      auto sink = std::make_shared<EngineSink>(
          loop, [self = shared_from_this(), index](GenerationUpdate update) {
            try {
              self->on_update(index, std::move(update));
            } catch (const std::exception& e) {
              self->fail(internal_error(e));
            }
          });
      submissions.push_back({std::move(generation), std::move(sink)});
    }
  }
  // Before anything runs, so that nothing can fail between submitting and knowing the ids.
  std::vector<Choice> choices(choice_count_);
  const auto ids = engine_.submit_all(std::move(submissions));
  if (!ids) return fail(to_api_error(ids.error()));
  // Updates come through the loop, after this.
  choices_ = std::move(choices);
  for (size_t i = 0; i < choice_count_; ++i) choices_[i].id = (*ids)[i];
  if (request_.options.stream) return;
  for (size_t i = 0; i < choice_count_; ++i) choices_[i].text = prompt_of(i).echo;
}

const PreparedPrompt& GenerationCall::prompt_of(size_t choice) const {
  return request_.prompts[choice / static_cast<size_t>(request_.options.n)];
}

void GenerationCall::on_update(size_t index, GenerationUpdate update) {
  if (done_) return;
  Choice& choice = choices_[index];
  choice.completion_tokens = update.completion_tokens;
  choice.finish = update.finish;
  if (const auto error = failure_of(update)) return fail(*error);
  if (update.finish != FinishReason::kNone) ++finished_count_;
  if (request_.options.stream) return stream(index, update);
  choice.text += update.text;
  if (finished_count_ == choice_count_) answer_whole();
}

void GenerationCall::stream(size_t index, const GenerationUpdate& update) {
  Choice& choice = choices_[index];
  std::string events;
  if (!streaming_) {
    streaming_ = true;
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    exchange_->start_stream(std::move(head));
  }
  const int number = static_cast<int>(index);
  if (!choice.begun) {
    choice.begun = true;
    events += format_.first_chunk(number, prompt_of(index).echo);
  }
  if (!update.text.empty()) events += format_.text_chunk(number, update.text);
  if (update.finish != FinishReason::kNone) {
    events += format_.finish_chunk(number, finish_name(update.finish));
  }
  done_ = finished_count_ == choice_count_;
  if (done_) events += format_.end(usage());
  exchange_->write(events);
  if (done_) exchange_->end_stream();
}

void GenerationCall::answer_whole() {
  done_ = true;
  std::vector<ChoiceAnswer> answers;
  answers.reserve(choices_.size());
  for (Choice& choice : choices_) {
    answers.push_back({std::move(choice.text), finish_name(choice.finish)});
  }
  exchange_->respond(json_response(format_.whole(answers, usage())));
}

void GenerationCall::fail(const ApiError& error) {
  done_ = true;
  cancel_unfinished();
  if (streaming_) {
    exchange_->write(AnswerFormat::error_event(error));
    exchange_->end_stream();
  } else {
    exchange_->respond(error_response(error));
  }
}

void GenerationCall::cancel_unfinished() {
  if (finished_count_ == choice_count_) return;
  for (const Choice& choice : choices_) {
    if (choice.finish == FinishReason::kNone) engine_.cancel(choice.id);
  }
}

Usage GenerationCall::usage() const {
  Usage usage;
  for (const PreparedPrompt& prompt : request_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
  }
  for (const Choice& choice : choices_) usage.completion_tokens += choice.completion_tokens;
  return usage;
}

}  // namespace expertplex
