#include "api/http_session.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <exception>

#include "api/http_exchange.h"
#include "base/log.h"

namespace expertplex {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::beast::error_code;

namespace {

constexpr Nanoseconds kLingerLimit = 2 * kSecond;
constexpr size_t kMaxLingeredBytes = size_t{64} << 20;
// A body that brings less within body_progress_limit, and does not end, is stalled.
constexpr size_t kBodyProgressBytes = 1024;
// A connection that waits keeps no larger buffer than this.
constexpr size_t kKeptInboxBytes = 4096;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The path of a request target: no query, percent-decoded; a stray '%' stays.
std::string path_of(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] == '%' && i + 2 < target.size()) {
      const int high = hex_digit(target[i + 1]), low = hex_digit(target[i + 2]);
      if (high >= 0 && low >= 0) {
        path += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    path += target[i];
  }
  return path;
}

}  // namespace

HttpSession::HttpSession(tcp::socket socket, HttpSessionContext& context)
    : socket_(std::move(socket)), context_(context), state_since_(now_ns()) {}

HttpSession::~HttpSession() = default;

HttpRequest HttpSession::to_request(Message message, Nanoseconds accepted_at) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = path_of({message.target().data(), message.target().size()});
  for (const auto& field : message) {
    request.headers[lower({field.name_string().data(), field.name_string().size()})] =
        std::string(field.value());
  }
  request.body = std::move(message.body());
  request.accepted_at = accepted_at;
  return request;
}

template <typename Step>
void HttpSession::guard(Step&& step) {
  try {
    step();
  } catch (const std::exception& e) {
    log_error("http: a connection is cut: {}", e.what());
    cut();
  }
}

void HttpSession::start() {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  wait_readable();
}

void HttpSession::wait_readable() {
  if (reading_ || eof_ || state_ == State::kClosed) return;
  if (!inbox_.empty()) {
    // What is here comes first. While an answer goes out, write_limit watches the client.
    if (state_ == State::kIdle || answer_complete_) return;
    // check_limits looks whether the client is still there.
    if (state_ == State::kAnswering && memory_is_short()) return;
  }
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->reading_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->cut();
    self->guard([&] { self->on_readable(); });
  });
}

void HttpSession::on_readable() {
  error_code error;
  const size_t count = socket_.read_some(asio::buffer(context_.scratch), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return wait_readable();
  if (error == asio::error::eof) return on_eof();
  if (error) return cut();
  on_bytes({context_.scratch.data(), count});
  wait_readable();
}

void HttpSession::on_eof() {
  eof_ = true;
  if (state_ == State::kAnswering && !answer_complete_) return cut();
  // Of what was pipelined before the end, requests that are answered at once still get their
  // answers; the first one that takes time ends the connection.
  const bool more_to_do =
      state_ == State::kAnswering || (state_ == State::kIdle && !inbox_.empty());
  if (!more_to_do) close();
}

void HttpSession::on_bytes(std::string_view bytes) {
  if (state_ == State::kLingering) {
    lingered_bytes_ += bytes.size();
    if (lingered_bytes_ > kMaxLingeredBytes) close();
    return;
  }
  inbox_.append(bytes);
  if (state_ == State::kReading && head_since_ != 0) {
    body_moved_bytes_ += bytes.size();
    if (body_moved_bytes_ >= kBodyProgressBytes) {
      body_moved_bytes_ = 0;
      body_moved_at_ = now_ns();
    }
  }
  if (state_ == State::kIdle || state_ == State::kReading) return parse();
  count_held();
  // Not reading on would leave a client's end unseen for as long as the request runs.
  if (state_ == State::kAnswering && !answer_complete_ &&
      inbox_.size() > context_.options.max_pipelined_bytes) {
    log_debug("http: cut a client that sends on and on without waiting for its answer");
    cut();
  }
}

void HttpSession::parse() {
  if (state_ == State::kIdle) {
    // Some clients send an empty line after a body.
    inbox_.erase(0, std::min(inbox_.find_first_not_of("\r\n"), inbox_.size()));
    if (inbox_.empty()) return;
    state_ = State::kReading;
    request_since_ = now_ns();
    head_since_ = 0;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(context_.options.max_header_bytes));
    parser_->body_limit(context_.options.max_body_bytes);
    parser_->eager(true);
  }
  while (!inbox_.empty() && !parser_->is_done()) {
    error_code error;
    const size_t used = parser_->put(asio::buffer(inbox_), error);
    inbox_.erase(0, used);
    if (parser_->is_header_done() && head_since_ == 0 && !check_framing()) return;
    if (error == http::error::need_more) break;
    if (error) return refuse(error);
    if (used == 0) break;
  }
  if (inbox_.empty() && inbox_.capacity() > kKeptInboxBytes) inbox_ = {};
  if (!check_memory()) return;
  if (parser_->is_header_done() && head_since_ == 0) {
    head_since_ = body_moved_at_ = now_ns();
    body_moved_bytes_ = 0;
    if (!continue_if_expected()) return;
  }
  if (parser_->is_done()) return dispatch();
  // The parser keeps to the limit in the head; later only chunk extensions and trailers, which it
  // takes whole, stay here.
  if (parser_->is_header_done() && inbox_.size() > context_.options.max_header_bytes) {
    return refuse(431, fmt::format("the chunk extensions or trailers are larger than {} bytes",
                                   context_.options.max_header_bytes));
  }
  if (eof_) close();
}

// Beast reads other codings than chunked as if they were not there.
bool HttpSession::check_framing() {
  const auto& message = parser_->get();
  const auto coding = message[http::field::transfer_encoding];
  const size_t count = message.count(http::field::transfer_encoding);
  if (count == 0 || (count == 1 && lower({coding.data(), coding.size()}) == "chunked")) return true;
  refuse(501, "the only transfer coding that this server knows is chunked");
  return false;
}

bool HttpSession::check_memory() {
  count_held();
  if (held_bytes_ == 0 || !memory_is_short()) return true;
  refuse(503, "too many large requests at once; retry later");
  return false;
}

void HttpSession::count_held() {
  size_t held = inbox_.size() + answered_body_bytes_;
  if (parser_) held += parser_->get().body().size();
  context_.held_bytes = context_.held_bytes - held_bytes_ + held;
  held_bytes_ = held;
}

bool HttpSession::memory_is_short() const {
  return context_.held_bytes > context_.options.max_bodies_bytes;
}

bool HttpSession::continue_if_expected() {
  const auto expectation = parser_->get()[http::field::expect];
  if (expectation.empty() || parser_->get().version() < 11) return true;
  if (lower({expectation.data(), expectation.size()}) != "100-continue") {
    refuse(417, "the only expectation that this server meets is 100-continue");
    return false;
  }
  if (!parser_->is_done()) send("HTTP/1.1 100 Continue\r\n\r\n");
  return state_ == State::kReading;
}

void HttpSession::dispatch() {
  const int version = static_cast<int>(parser_->get().version());
  keep_alive_ = parser_->get().keep_alive();
  auto exchange = std::make_shared<SessionExchange>(
      *this, to_request(parser_->release(), request_since_), version);
  exchange_ = exchange;
  parser_.reset();
  answered_body_bytes_ = exchange->request().body.size();
  count_held();
  state_ = State::kAnswering;
  state_since_ = now_ns();
  answer_complete_ = false;
  try {
    context_.handler(exchange);
  } catch (const std::exception& e) {
    exchange->respond(error_response(internal_error(e)));
    // A stream that has begun and that nobody continues.
    if (exchange_ == exchange && !answer_complete_) return cut();
  }
  if (eof_ && state_ == State::kAnswering && !answer_complete_) cut();
}

void HttpSession::refuse(const error_code& error) {
  if (error == http::error::header_limit) {
    return refuse(431, fmt::format("the headers are larger than {} bytes",
                                   context_.options.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return refuse(413, fmt::format("the body is larger than {} bytes; shorten the request",
                                   context_.options.max_body_bytes));
  }
  if (error == http::error::bad_version) return refuse(505, "this server speaks HTTP/1.1");
  refuse(400, fmt::format("not a valid HTTP/1.1 request: {}", error.message()));
}

void HttpSession::refuse(int status, std::string message) {
  ApiError error = bad_request(std::move(message));
  error.status = status;
  if (status == 501) error.type = "not_implemented_error";
  if (status == 503) error.type = "service_unavailable_error";
  keep_alive_ = false;
  exchange_ = std::make_shared<SessionExchange>(*this, HttpRequest{}, 11);
  exchange_->set_route("unparsed");
  parser_.reset();
  inbox_ = {};
  count_held();
  state_ = State::kAnswering;
  state_since_ = now_ns();
  exchange_->respond(error_response(error));
}

void HttpSession::send(std::string_view bytes) {
  if (state_ == State::kClosed) return;
  if (outbox_.empty()) progress_since_ = now_ns();
  outbox_.append(bytes);
  if (!writing_) flush();
}

void HttpSession::flush() {
  while (outbox_sent_ < outbox_.size()) {
    error_code error;
    const size_t count = socket_.write_some(
        asio::buffer(outbox_.data() + outbox_sent_, outbox_.size() - outbox_sent_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      outbox_.erase(0, outbox_sent_);
      outbox_sent_ = 0;
      writing_ = true;
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code failed) {
        self->writing_ = false;
        if (self->state_ == State::kClosed) return;
        self->guard([&] { failed ? self->cut() : self->flush(); });
      });
      return;
    }
    if (error) return cut();
    outbox_sent_ += count;
    progress_since_ = now_ns();
  }
  outbox_.clear();
  outbox_sent_ = 0;
  if (answer_complete_) on_all_sent();
}

void HttpSession::finish_answer() {
  answer_complete_ = true;
  if (context_.draining) keep_alive_ = false;
}

void HttpSession::on_all_sent() {
  answer_complete_ = false;
  end_exchange(exchange_->status());
  if (!keep_alive_) return linger();
  state_ = State::kIdle;
  state_since_ = now_ns();
  if (context_.draining && inbox_.empty()) return close();
  if (eof_ && inbox_.empty()) return close();
  // Later, not from here: a thousand pipelined requests must not become a thousand stack frames.
  if (!inbox_.empty()) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->guard([&] {
        if (self->state_ == State::kIdle) self->parse();
        self->wait_readable();
        if (self->state_ == State::kIdle && self->eof_) self->close();
      });
    });
  }
  wait_readable();
}

void HttpSession::end_exchange(int status) {
  answered_body_bytes_ = 0;
  count_held();
  if (!exchange_) return;
  const auto exchange = std::move(exchange_);
  exchange->detach(status == kStatusClientGone ? context_.loop : nullptr);
  context_.observer({exchange->route(), status, to_seconds(now_ns() - request_since_)});
}

// Closing while the client still sends would throw away the answer that it has not read yet.
void HttpSession::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (eof_) return close();
  state_ = State::kLingering;
  state_since_ = now_ns();
  inbox_ = {};
  count_held();
  wait_readable();
}

void HttpSession::cut() {
  if (state_ == State::kClosed) return;
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  end_exchange(kStatusClientGone);
  close();
}

void HttpSession::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  parser_.reset();
  inbox_ = {};
  answered_body_bytes_ = 0;
  count_held();
  error_code ignored;
  socket_.close(ignored);
  context_.forget(self);
}

void HttpSession::close_when_idle() {
  if (state_ == State::kReading || (state_ == State::kIdle && inbox_.empty())) close();
}

bool HttpSession::peer_is_gone() {
  if (reading_ || eof_) return false;
  pollfd entry{socket_.native_handle(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0;
}

void HttpSession::on_tick(Nanoseconds now) {
  guard([&] { check_limits(now); });
}

void HttpSession::check_limits(Nanoseconds now) {
  const HttpServerOptions& options = context_.options;
  switch (state_) {
    case State::kIdle:
      if (now - state_since_ > options.idle_limit) close();
      return;
    case State::kReading:
      if (head_since_ == 0 ? now - request_since_ > options.head_limit
                           : now - head_since_ > options.body_limit ||
                                 now - body_moved_at_ > options.body_progress_limit) {
        refuse(408, "the request did not arrive in time");
      }
      return;
    case State::kAnswering:
      if ((!outbox_.empty() && now - progress_since_ > options.write_limit) ||
          now - state_since_ > options.answer_limit || peer_is_gone()) {
        cut();
      }
      return;
    case State::kLingering:
      if (now - state_since_ > kLingerLimit) close();
      return;
    case State::kClosed:
      return;
  }
}

}  // namespace expertplex
