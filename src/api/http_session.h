// HttpSession: one client connection, a state machine driven by "readable", "writable" and the
// server's tick. Private to http_server.cc and http_session.cc, the only files that see Beast and
// Asio.
//
// Thread rules: io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "api/api_error.h"
#include "api/http_server.h"

namespace expertplex {

class HttpSession;

// What all sessions of a server share.
struct HttpSessionContext {
  HttpServerOptions options;
  HttpHandler handler;
  HttpServer::Observer observer;
  std::shared_ptr<IoLoop> loop;
  std::function<void(const std::shared_ptr<HttpSession>&)> forget;  // takes it out of `sessions`
  std::vector<char> scratch;                                        // where every read lands first
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
  size_t held_bytes = 0;  // of requests, by all sessions
  bool draining = false;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, HttpSessionContext& context);
  ~HttpSession();

  void start();
  // Compares every limit with the time.
  void on_tick(Nanoseconds now);
  // Closes now unless a request is being answered.
  void close_when_idle();
  // Cuts the connection; the handler's disconnect callback runs.
  void cut();

 private:
  class SessionExchange;
  // Beast's string_body sets the declared length aside before a byte has come; this one grows.
  struct GrowingBody {
    using value_type = std::string;
    class reader {
     public:
      template <bool isRequest, class Fields>
      reader(boost::beast::http::header<isRequest, Fields>&, value_type& body) : body_(body) {}
      void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
      template <class Buffers>
      size_t put(const Buffers& buffers, boost::beast::error_code& error) {
        error = {};
        size_t count = 0;
        for (const auto& part : boost::beast::buffers_range_ref(buffers)) {
          body_.append(static_cast<const char*>(part.data()), part.size());
          count += part.size();
        }
        return count;
      }
      void finish(boost::beast::error_code& error) { error = {}; }

     private:
      value_type& body_;
    };
  };
  using Message = boost::beast::http::request<GrowingBody>;
  using Parser = boost::beast::http::request_parser<GrowingBody>;
  enum class State { kIdle, kReading, kAnswering, kLingering, kClosed };

  static HttpRequest to_request(Message message, Nanoseconds accepted_at);

  // Runs a step of the state machine; what it throws costs this session its connection, no other.
  template <typename Step>
  void guard(Step&& step);

  // Reading.
  void wait_readable();
  void on_readable();
  void on_eof();
  void on_bytes(std::string_view bytes);
  void parse();
  // All: false if the request was refused.
  bool check_framing();
  bool check_memory();
  bool continue_if_expected();
  void dispatch();
  // Answers for the handler, before a request was complete; then the connection closes.
  void refuse(int status, std::string message);
  void refuse(const boost::beast::error_code& error);

  // Writing.
  void send(std::string_view bytes);
  void flush();
  void finish_answer();  // the handler is done
  void on_all_sent();
  void end_exchange(int status);
  // Brings this session's part of context_.held_bytes up to date.
  void count_held();
  bool memory_is_short() const;
  // For a session that does not read: whether the client has ended the connection.
  bool peer_is_gone();

  void check_limits(Nanoseconds now);
  void linger();
  void close();

  boost::asio::ip::tcp::socket socket_;
  HttpSessionContext& context_;
  State state_ = State::kIdle;
  bool reading_ = false;          // a read wait is under way
  bool writing_ = false;          // a write wait is under way
  bool eof_ = false;              // the client sends no more
  bool answer_complete_ = false;  // all of the answer is in outbox_
  bool keep_alive_ = true;
  std::string inbox_;   // read and not parsed
  std::string outbox_;  // [outbox_sent_, end) is not sent
  size_t outbox_sent_ = 0;
  std::optional<Parser> parser_;
  std::shared_ptr<SessionExchange> exchange_;
  Nanoseconds state_since_ = 0;     // of kIdle, kAnswering, kLingering
  Nanoseconds request_since_ = 0;   // its first byte
  Nanoseconds head_since_ = 0;      // its headers were complete; 0 before
  Nanoseconds progress_since_ = 0;  // of sending
  Nanoseconds body_moved_at_ = 0;   // the body last made enough progress
  size_t body_moved_bytes_ = 0;     // since then
  size_t answered_body_bytes_ = 0;  // the body of the request that is being answered
  size_t held_bytes_ = 0;           // its part of context_.held_bytes
  size_t lingered_bytes_ = 0;
};

}  // namespace expertplex
