// HttpServer: HTTP/1.1 for thousands of open streams on one io thread. Keep-alive, pipelining (one
// request of a connection at a time, answers in order), chunked streams, Expect: 100-continue. A
// client that goes away is noticed at once, also while its answer is still being computed; the end
// of its input counts as that. Everything has a limit: headers, body, time to read them, unread
// output, connections.
//
// Errors: listening fails with one clear line. Requests that cannot be parsed are answered by the
// server itself in OpenAI's error shape (400, 408, 413, 417, 431, 501, 503) and the connection is
// closed.
//
// Thread rules: the handler and the observer run on the io thread; public members from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "api/http_types.h"
#include "base/clock.h"
#include "base/result.h"

namespace expertplex {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: a free one
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_body_bytes = size_t{32} << 20;
  // What is held of all requests that are being read or answered; beyond it, 503.
  size_t max_bodies_bytes = size_t{512} << 20;
  // Unread output of one connection beyond which the client is given up.
  size_t max_unread_bytes = size_t{1} << 20;
  // Bytes of later requests while one is being computed; a client that sends more is cut.
  size_t max_pipelined_bytes = size_t{1} << 20;
  int max_connections = 16384;
  Nanoseconds head_limit = 20 * kSecond;   // first byte of a request to the end of its headers
  Nanoseconds body_limit = 120 * kSecond;  // end of the headers to the end of the body
  Nanoseconds body_progress_limit = 20 * kSecond;  // a body that stalls
  Nanoseconds idle_limit = 75 * kSecond;           // between requests
  Nanoseconds write_limit = 30 * kSecond;          // no progress in sending
  Nanoseconds answer_limit = 3600 * kSecond;       // a request's whole answer
  Nanoseconds tick = 250 * kMillisecond;           // how often limits are looked at
};

class HttpServer {
 public:
  using Observer = std::function<void(const HttpRecord&)>;

  // Binds the port; connections wait in the kernel until start().
  static Result<std::unique_ptr<HttpServer>> listen(HttpServerOptions options, HttpHandler handler,
                                                    Observer observer);
  // Cuts what is still open.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Once: starts the io thread.
  void start();

  int port() const;
  std::shared_ptr<IoLoop> loop() const;
  int open_connections() const;

  // Stops accepting, closes idle connections, and waits until the others have their answers; after
  // `limit` they are cut. Says how many were.
  int drain(Nanoseconds limit);

 private:
  HttpServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace expertplex
