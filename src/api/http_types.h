// What the API's handlers see of HTTP: a request, the answer being given to it, and the loop that
// everything runs on. No networking library shows here, so that handlers are tested without
// sockets.
//
// Thread rules: an Exchange and everything that it calls live on the io thread. IoLoop::post may be
// called from any thread; that is how engine and worker threads come back.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace expertplex {

struct HttpRequest {
  std::string method;                          // upper case
  std::string path;                            // percent-decoded, without the query
  std::map<std::string, std::string> headers;  // names in lower case; the last one wins
  std::string body;
  Nanoseconds accepted_at = 0;  // its first byte came off the socket

  // Empty if absent; `name` in lower case.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  // no header if empty
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// "Not Found" for 404.
const char* reason_phrase(int status);

// A connection that ended before its answer did is counted under this status.
constexpr int kStatusClientGone = 499;

// One request and its answer: either one respond(), or start_stream(), write()..., end_stream().
// After the client has gone, calls do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The request's body, which the caller may take away.
  virtual std::string take_body() = 0;

  virtual void respond(HttpResponse response) = 0;
  // `head.body` must be empty. What a slow client leaves unread is bounded: beyond the limit the
  // connection is cut and the disconnect callback runs.
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string_view data) = 0;
  virtual void end_stream() = 0;

  // The client went away before the answer was complete.
  virtual bool gone() const = 0;
  // Runs once, later on the loop, if the client goes away before the answer is complete.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  // A bounded name for metrics, such as "/v1/models/{id}".
  virtual void set_route(std::string route) = 0;
  // Sent with every answer as X-Request-Id.
  virtual const std::string& request_id() const = 0;
};

class IoLoop {
 public:
  virtual ~IoLoop() = default;
  // After the loop has stopped, the function is dropped.
  virtual void post(std::function<void()> function) = 0;
  virtual void post_after(Nanoseconds delay, std::function<void()> function) = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<Exchange>)>;

// What became of a request, for metrics.
struct HttpRecord {
  std::string route;
  int status = 0;
  double seconds = 0;  // first byte in to last byte handed to the kernel
};

}  // namespace expertplex
