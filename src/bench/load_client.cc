#include "bench/load_client.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <exception>

#include "base/json.h"

namespace expertplex::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable;
using tcp = asio::ip::tcp;

std::string request_body(const StreamRequest& request) {
  return Json{{"model", "default"},
              {"prompt", request.prompt},
              {"max_tokens", request.max_tokens},
              {"temperature", 0},
              {"ignore_eos", true},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}}}
      .dump();
}

// Takes complete `data: ...` events off the front of `body`.
class EventReader {
 public:
  explicit EventReader(StreamResult& result) : result_(result) {}

  void read(std::string& body) {
    size_t begin = 0;
    for (size_t end; (end = body.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      event(std::string_view(body).substr(begin, end - begin));
    }
    body.erase(0, begin);
  }
  bool done() const { return done_; }

 private:
  void event(std::string_view line) {
    if (line.substr(0, 6) != "data: ") return;
    line.remove_prefix(6);
    if (line == "[DONE]") {
      done_ = true;
      return;
    }
    const auto json = parse_json(line);
    if (!json || json->contains("error")) {
      result_.error = std::string(line);
      return;
    }
    for (const Json& choice : json->value("choices", Json::array())) {
      const std::string text = choice.value("text", "");
      if (text.empty()) continue;
      result_.chunk_at.push_back(now_ns());
      result_.text += text;
    }
    if (const auto usage = json->find("usage"); usage != json->end() && usage->is_object()) {
      result_.completion_tokens = usage->value("completion_tokens", 0);
    }
  }

  StreamResult& result_;
  bool done_ = false;
};

http::request<http::string_body> make_request(const std::string& host, http::verb verb,
                                              const std::string& target, std::string body) {
  http::request<http::string_body> request{verb, target, 11};
  request.set(http::field::host, host);
  request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

tcp::endpoint endpoint_of(const std::string& host, int port) {
  return {asio::ip::make_address(host), static_cast<uint16_t>(port)};
}

asio::awaitable<void> run_stream(const std::string& host, int port, const StreamRequest& request,
                                 StreamResult& result, Nanoseconds limit) {
  const auto executor = co_await asio::this_coro::executor;
  if (request.start_after > 0) {
    asio::steady_timer timer(executor, std::chrono::nanoseconds(request.start_after));
    co_await timer.async_wait(use_awaitable);
  }
  const auto message =
      make_request(host, http::verb::post, "/v1/completions", request_body(request));
  beast::tcp_stream stream(executor);
  stream.expires_after(std::chrono::nanoseconds(limit));
  result.sent = now_ns();
  co_await stream.async_connect(endpoint_of(host, port), use_awaitable);
  stream.socket().set_option(tcp::no_delay(true));
  co_await http::async_write(stream, message, use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  // Not boost::none: Boost 1.74 takes that for a limit of zero when the body is chunked.
  parser.body_limit(uint64_t{1} << 40);
  co_await http::async_read_header(stream, buffer, parser, use_awaitable);
  EventReader events(result);
  while (!parser.is_done()) {
    co_await http::async_read_some(stream, buffer, parser, use_awaitable);
    if (parser.get().result_int() == 200) events.read(parser.get().body());
  }
  result.done = now_ns();
  if (parser.get().result_int() != 200) {
    result.error = fmt::format("HTTP {}: {}", parser.get().result_int(), parser.get().body());
  } else if (result.error.empty() && !events.done()) {
    result.error = "the stream ended without [DONE]";
  }
}

asio::awaitable<void> run_get(const std::string& host, int port, const std::string& path,
                              std::string& body, std::string& error, Nanoseconds limit) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(std::chrono::nanoseconds(limit));
  co_await stream.async_connect(endpoint_of(host, port), use_awaitable);
  const auto message = make_request(host, http::verb::get, path, "");
  co_await http::async_write(stream, message, use_awaitable);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  co_await http::async_read(stream, buffer, response, use_awaitable);
  body = std::move(response.body());
  if (response.result_int() != 200) error = fmt::format("HTTP {}", response.result_int());
}

std::string what_of(std::exception_ptr failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

Result<std::vector<StreamResult>> run_streams(const std::string& host, int port,
                                              const std::vector<StreamRequest>& requests,
                                              Nanoseconds limit) {
  std::vector<StreamResult> results(requests.size());
  asio::io_context io(1);
  for (size_t i = 0; i < requests.size(); ++i) {
    asio::co_spawn(io, run_stream(host, port, requests[i], results[i], limit),
                   [&result = results[i]](std::exception_ptr failure) {
                     if (failure) result.error = what_of(failure);
                   });
  }
  io.run();
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].ok()) {
      return make_error(ErrorCode::kUnavailable, "request {} of {}: {}", i, results.size(),
                        results[i].error);
    }
  }
  return results;
}

Result<std::string> http_get(const std::string& host, int port, const std::string& path,
                             Nanoseconds limit) {
  std::string body, error;
  asio::io_context io(1);
  asio::co_spawn(io, run_get(host, port, path, body, error, limit),
                 [&error](std::exception_ptr failure) {
                   if (failure) error = what_of(failure);
                 });
  io.run();
  if (!error.empty()) {
    return make_error(ErrorCode::kUnavailable, "GET http://{}:{}{}: {}", host, port, path, error);
  }
  return body;
}

}  // namespace expertplex::bench
