#include "api/http_exchange.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

#include "api/unique_id.h"

namespace expertplex {
namespace {

constexpr size_t kMaxRequestIdBytes = 256;

// The client's id if it is one that can be echoed, else a new one.
std::string request_id_of(const HttpRequest& request) {
  const std::string_view given = request.header("x-request-id");
  const bool printable =
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (given.empty() || given.size() > kMaxRequestIdBytes || !printable) return unique_id("req-");
  return std::string(given);
}

}  // namespace

HttpSession::SessionExchange::SessionExchange(HttpSession& session, HttpRequest request,
                                              int version)
    : session_(&session),
      request_(std::move(request)),
      version_(version),
      request_id_(request_id_of(request_)) {}

std::string HttpSession::SessionExchange::head_of(const HttpResponse& response,
                                                  std::string_view framing) const {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", response.status,
                  reason_phrase(response.status), fmt::gmtime(std::time(nullptr)));
  if (!response.content_type.empty()) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += fmt::format("X-Request-Id: {}\r\n{}", request_id_, framing);
  if (!session_->keep_alive_) {
    head += "Connection: close\r\n";
  } else if (version_ < 11) {
    head += "Connection: keep-alive\r\n";
  }
  return head += "\r\n";
}

void HttpSession::SessionExchange::respond(HttpResponse response) {
  if (!session_ || status_ != 0) return;
  status_ = response.status;
  session_->finish_answer();
  std::string bytes =
      head_of(response, fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (request_.method != "HEAD") bytes += response.body;
  session_->send(bytes);
}

void HttpSession::SessionExchange::start_stream(HttpResponse head) {
  if (!session_ || status_ != 0) return;
  status_ = head.status;
  streaming_ = true;
  chunked_ = version_ >= 11;
  if (!chunked_)
    session_->keep_alive_ = false;  // the end of the stream is the end of the connection
  session_->send(head_of(head, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""));
}

void HttpSession::SessionExchange::write(std::string_view data) {
  if (!session_ || !streaming_ || data.empty()) return;
  if (chunked_) {
    session_->send(fmt::format("{:x}\r\n{}\r\n", data.size(), data));
  } else {
    session_->send(data);
  }
  if (session_ && session_->outbox_.size() > session_->context_.options.max_unread_bytes) {
    session_->cut();
  }
}

void HttpSession::SessionExchange::end_stream() {
  if (!session_ || !streaming_) return;
  streaming_ = false;
  session_->finish_answer();
  // An empty send would not notice that everything has gone out already.
  if (chunked_) {
    session_->send("0\r\n\r\n");
  } else if (!session_->writing_) {
    session_->flush();
  }
}

void HttpSession::SessionExchange::on_disconnect(std::function<void()> callback) {
  if (session_) {
    disconnect_callback_ = std::move(callback);
  } else if (loop_) {
    loop_->post(std::move(callback));
  }
}

void HttpSession::SessionExchange::detach(std::shared_ptr<IoLoop> gone) {
  session_ = nullptr;
  loop_ = std::move(gone);
  auto callback = std::move(disconnect_callback_);
  disconnect_callback_ = nullptr;
  if (loop_ && callback) loop_->post(std::move(callback));
}

}  // namespace expertplex
