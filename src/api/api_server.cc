#include "api/api_server.h"

#include <ctime>
#include <optional>
#include <string>

#include "api/generation_call.h"
#include "api/metrics.h"
#include "api/prepare.h"
#include "api/readiness_probe.h"
#include "api/router.h"
#include "api/tokenize_routes.h"
#include "api/unknown_fields.h"
#include "api/worker.h"
#include "base/log.h"

namespace expertplex {
namespace {

using ExchangePtr = std::shared_ptr<Exchange>;

std::string model_json(const ServedModel& model, const std::string& name) {
  return fmt::format(R"({{"id":{},"object":"model","created":{},"owned_by":"expertplex","root":{},)"
                     R"("parent":null,"max_model_len":{},"permission":[]}})",
                     json_quote(name), model.created, json_quote(model.name()),
                     model.max_model_len);
}

// The double that reads like the float: 0.7, not 0.699999988079071.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

ApiError unavailable(const std::string& why) {
  return to_api_error(make_error(ErrorCode::kUnavailable, "{}", why));
}

}  // namespace

struct ApiServer::Impl {
  ApiOptions options;
  Router router;
  // The rest belongs to the io thread.
  Engine* engine = nullptr;  // null while starting
  std::shared_ptr<const ServedModel> model;
  bool draining = false;
  ApiMetrics metrics;
  UnknownFields unknown_fields;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<HttpServer> http;
  std::shared_ptr<IoLoop> loop;  // of `http`

  void add_routes();
  void add_information_routes();
  // The reason why nothing can be generated now.
  std::optional<ApiError> not_ready() const;
  // work(body, model) on the io thread if the body is small, else on the worker; then done(result)
  // on the io thread. If either throws, the answer is 500.
  template <typename T>
  void compute(ExchangePtr exchange, T (*work)(std::string_view, const ServedModel&),
               std::function<void(T)> done);
  void generate(ExchangePtr exchange, Preparation (*prepare)(std::string_view, const ServedModel&));
  void begin(const ExchangePtr& exchange, Preparation preparation);
  void health(Exchange& exchange) const;
  void server_info(Exchange& exchange) const;
  void show_metrics(Exchange& exchange) const;
};

std::optional<ApiError> ApiServer::Impl::not_ready() const {
  if (draining) return unavailable("the server is stopping");
  if (!engine) return unavailable("the model is being loaded");
  return {};
}

template <typename T>
void ApiServer::Impl::compute(ExchangePtr exchange, T (*work)(std::string_view, const ServedModel&),
                              std::function<void(T)> done) {
  if (const auto error = not_ready()) return exchange->respond(error_response(*error));
  std::string body = exchange->take_body();
  if (body.size() <= options.inline_body_bytes) return done(work(body, *model));
  const auto shared_body = std::make_shared<const std::string>(std::move(body));
  const auto job = [loop = loop, model = model, exchange, work, shared_body,
                    done = std::move(done)] {
    std::shared_ptr<T> result;
    std::optional<ApiError> failure;
    try {
      result = std::make_shared<T>(work(*shared_body, *model));
    } catch (const std::exception& e) {
      failure = internal_error(e);
    }
    loop->post([exchange, result, failure, done] {
      if (failure) return exchange->respond(error_response(*failure));
      try {
        done(std::move(*result));
      } catch (const std::exception& e) {
        exchange->respond(error_response(internal_error(e)));
      }
    });
  };
  if (worker->submit(job)) return;
  exchange->respond(error_response(
      to_api_error(make_error(ErrorCode::kResourceExhausted,
                              "{} large requests wait for the tokenizer already; retry later",
                              options.max_queued_bodies))));
}

void ApiServer::Impl::generate(ExchangePtr exchange,
                               Preparation (*prepare)(std::string_view, const ServedModel&)) {
  compute<Preparation>(exchange, prepare, [this, exchange](Preparation preparation) {
    begin(exchange, std::move(preparation));
  });
}

void ApiServer::Impl::begin(const ExchangePtr& exchange, Preparation preparation) {
  if (const auto* error = std::get_if<ApiError>(&preparation)) {
    return exchange->respond(error_response(*error));
  }
  // The server may have begun to drain meanwhile.
  if (const auto error = not_ready()) return exchange->respond(error_response(*error));
  auto& request = std::get<PreparedRequest>(preparation);
  unknown_fields.warn(request.options.unknown_fields);
  metrics.on_generation(request.options.n, request.options.sampling.max_tokens.value_or(0));
  GenerationCall::start(*engine, loop, exchange, std::move(request), model->name(),
                        std::time(nullptr));
}

void ApiServer::Impl::health(Exchange& exchange) const {
  std::optional<ApiError> error = not_ready();
  if (!error) {
    const Health health = engine->health();
    if (!health.healthy) error = unavailable(health.detail);
  }
  if (error) return exchange.respond(error_response(*error));
  exchange.respond(HttpResponse{});
}

void ApiServer::Impl::server_info(Exchange& exchange) const {
  if (!engine) return exchange.respond(error_response(*not_ready()));
  Json info = engine->describe();
  info["version"] = EXPERTPLEX_VERSION;
  info["served_model_names"] = model->names;
  info["max_model_len"] = model->max_model_len;
  info["draining"] = draining;
  const SamplingDefaults& defaults = model->sampling_defaults;
  info["default_sampling_params"] = {{"temperature", shortest(defaults.temperature)},
                                     {"top_p", shortest(defaults.top_p)},
                                     {"top_k", defaults.top_k}};
  exchange.respond(json_response(info.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

void ApiServer::Impl::show_metrics(Exchange& exchange) const {
  std::optional<EngineStatistics> statistics;
  if (engine) statistics = engine->statistics();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = render_metrics({model ? model->name() : "", &metrics,
                                  statistics ? &*statistics : nullptr, http->open_connections()});
  exchange.respond(std::move(response));
}

void ApiServer::Impl::add_information_routes() {
  const auto get = [this](const char* path, void (Impl::*show)(Exchange&) const) {
    router.add("GET", path, [this, show](ExchangePtr exchange) { (this->*show)(*exchange); });
  };
  get("/health", &Impl::health);
  get("/metrics", &Impl::show_metrics);
  get("/server_info", &Impl::server_info);
  get("/get_server_info", &Impl::server_info);
  router.add("GET", "/version", [](ExchangePtr exchange) {
    exchange->respond(json_response(fmt::format(R"({{"version":"{}"}})", EXPERTPLEX_VERSION)));
  });
  router.add("GET", "/v1/models", [this](ExchangePtr exchange) {
    if (!model) return exchange->respond(error_response(*not_ready()));
    std::string list;
    for (const std::string& name : model->names) {
      list += (list.empty() ? "" : ",") + model_json(*model, name);
    }
    exchange->respond(json_response(fmt::format(R"({{"object":"list","data":[{}]}})", list)));
  });
  router.add("GET", "/v1/models/{id}", [this](ExchangePtr exchange) {
    if (!model) return exchange->respond(error_response(*not_ready()));
    const std::string name = exchange->request().path.substr(std::string("/v1/models/").size());
    if (const auto error = model->check_name(name)) {
      return exchange->respond(error_response(*error));
    }
    exchange->respond(json_response(model_json(*model, name)));
  });
}

void ApiServer::Impl::add_routes() {
  add_information_routes();
  router.add("POST", "/v1/chat/completions",
             [this](ExchangePtr exchange) { generate(std::move(exchange), prepare_chat); });
  router.add("POST", "/v1/completions",
             [this](ExchangePtr exchange) { generate(std::move(exchange), prepare_completion); });
  const auto post = [this](const char* path,
                           HttpResponse (*work)(std::string_view, const ServedModel&)) {
    router.add("POST", path, [this, work](ExchangePtr exchange) {
      compute<HttpResponse>(exchange, work, [exchange](HttpResponse response) {
        exchange->respond(std::move(response));
      });
    });
  };
  post("/tokenize", tokenize);
  post("/detokenize", detokenize);
  post("/v1/tokenize", tokenize);
  post("/v1/detokenize", detokenize);
  for (const char* path : {"/ready", "/health_generate"}) {
    router.add("GET", path, [this](ExchangePtr exchange) {
      if (const auto error = not_ready()) return exchange->respond(error_response(*error));
      probe_engine(*engine, loop, exchange, options.probe_limit);
    });
  }
}

ApiServer::ApiServer() : impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<ApiServer>> ApiServer::start(ApiOptions options) {
  std::unique_ptr<ApiServer> server(new ApiServer);
  Impl* impl = server->impl_.get();
  impl->options = options;
  impl->worker = std::make_unique<Worker>(options.max_queued_bodies);
  impl->add_routes();
  EXPERTPLEX_ASSIGN(
      impl->http, HttpServer::listen(
                      options.http,
                      [impl](ExchangePtr exchange) { impl->router.dispatch(std::move(exchange)); },
                      [impl](const HttpRecord& record) {
                        log_debug("{} {} {:.3f} s", record.route, record.status, record.seconds);
                        impl->metrics.on_http(record);
                      }));
  impl->loop = impl->http->loop();
  impl->http->start();
  return server;
}

ApiServer::~ApiServer() { stop(0); }

int ApiServer::port() const { return impl_->http->port(); }

void ApiServer::attach(Engine& engine, ServedModel model) {
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  impl_->loop->post([impl = impl_.get(), &engine, shared] {
    impl->metrics.set_max_model_len(shared->max_model_len);
    impl->model = shared;
    impl->engine = &engine;
  });
}

void ApiServer::begin_drain() {
  impl_->loop->post([impl = impl_.get()] { impl->draining = true; });
}

int ApiServer::stop(Nanoseconds limit) {
  // After a listen that failed there is none.
  return impl_->http ? impl_->http->drain(limit) : 0;
}

}  // namespace expertplex
