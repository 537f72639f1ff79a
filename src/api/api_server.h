// ApiServer: the OpenAI-compatible HTTP API of one engine.
//
//   POST /v1/chat/completions, /v1/completions     generation, whole or streamed
//   GET  /v1/models, /v1/models/{id}               the served model
//   POST /tokenize, /detokenize (also under /v1)
//   GET  /health                                   200 while the engine makes progress, else 503
//   GET  /ready, /health_generate                  one-token probe of the data plane
//   GET  /metrics, /version, /server_info, /get_server_info
//
// It listens from the start, answers 503 until the engine is attached, and again once draining.
//
// Thread rules: members from the thread that made it. The engine must outlive the server.
#pragma once

#include <memory>
#include <string>

#include "api/http_server.h"
#include "api/served_model.h"
#include "base/result.h"
#include "serving/engine.h"

namespace expertplex {

struct ApiOptions {
  HttpServerOptions http;
  // Bodies above this are parsed and tokenised on the worker thread.
  size_t inline_body_bytes = size_t{8} << 10;
  size_t max_queued_bodies = 256;
  Nanoseconds probe_limit = 10 * kSecond;
};

class ApiServer {
 public:
  static Result<std::unique_ptr<ApiServer>> start(ApiOptions options);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  int port() const;

  // From here on requests are served.
  void attach(Engine& engine, ServedModel model);
  // From here on generation and /health answer 503; what runs goes on.
  void begin_drain();
  // Waits at most `limit` until open answers are sent, then closes everything. Says how many
  // connections were cut.
  int stop(Nanoseconds limit);

 private:
  ApiServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace expertplex
