#include "api/readiness_probe.h"

#include "api/api_error.h"
#include "api/engine_sink.h"

namespace expertplex {
namespace {

class Probe : public std::enable_shared_from_this<Probe> {
 public:
  Probe(Engine& engine, std::shared_ptr<Exchange> exchange)
      : engine_(engine), exchange_(std::move(exchange)), started_at_(now_ns()) {}

  void start(const std::shared_ptr<IoLoop>& loop, Nanoseconds limit) {
    GenerationRequest request;
    request.prompt = {0};
    request.sampling.max_tokens = 1;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.accepted_at = exchange_->request().accepted_at;
    auto sink = std::make_shared<EngineSink>(
        loop, [self = shared_from_this()](GenerationUpdate update) { self->on_update(update); });
    auto id = engine_.submit(std::move(request), std::move(sink));
    if (!id) return end(id.error().message);
    id_ = *id;
    exchange_->on_disconnect([self = shared_from_this()] { self->abandon(); });
    loop->post_after(limit, [self = shared_from_this(), limit] {
      if (self->done_) return;
      self->engine_.cancel(self->id_);
      self->end(fmt::format("no token within {} s", to_seconds(limit)));
    });
  }

 private:
  void on_update(const GenerationUpdate& update) {
    if (done_ || update.finish == FinishReason::kNone) return;
    if (update.finish == FinishReason::kStop || update.finish == FinishReason::kLength) {
      return end({});
    }
    end(update.error ? update.error->message : "the probe was cancelled");
  }

  void abandon() {
    if (!done_) engine_.cancel(id_);
    done_ = true;
  }

  void end(const std::string& problem) {
    done_ = true;
    if (problem.empty()) {
      return exchange_->respond(json_response(fmt::format(R"({{"status":"ok","seconds":{:.6f}}})",
                                                          to_seconds(now_ns() - started_at_))));
    }
    exchange_->respond(error_response(to_api_error(
        make_error(ErrorCode::kUnavailable, "the one-token probe failed: {}", problem))));
  }

  Engine& engine_;
  const std::shared_ptr<Exchange> exchange_;
  const Nanoseconds started_at_;
  RequestId id_;
  bool done_ = false;
};

}  // namespace

void probe_engine(Engine& engine, std::shared_ptr<IoLoop> loop, std::shared_ptr<Exchange> exchange,
                  Nanoseconds limit) {
  std::make_shared<Probe>(engine, std::move(exchange))->start(loop, limit);
}

}  // namespace expertplex
