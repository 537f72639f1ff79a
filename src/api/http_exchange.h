// The Exchange that an HttpSession hands to handlers. It outlives the session where a handler keeps
// it, and then does nothing. Private to http_session.cc.
//
// Thread rules: io thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "api/http_session.h"

namespace expertplex {

class HttpSession::SessionExchange final : public Exchange {
 public:
  // `version`: 10 or 11.
  SessionExchange(HttpSession& session, HttpRequest request, int version);

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  void respond(HttpResponse response) override;
  void start_stream(HttpResponse head) override;
  void write(std::string_view data) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override;
  void set_route(std::string route) override { route_ = std::move(route); }
  const std::string& request_id() const override { return request_id_; }
  bool gone() const override { return loop_ != nullptr; }

  const std::string& route() const { return route_; }
  int status() const { return status_; }
  // The session is done with this exchange. With a loop: the client has gone, so the callback runs
  // there.
  void detach(std::shared_ptr<IoLoop> gone);

 private:
  std::string head_of(const HttpResponse& response, std::string_view framing) const;

  HttpSession* session_;
  HttpRequest request_;
  int version_;
  std::string request_id_;
  std::string route_ = "other";
  int status_ = 0;  // 0: nothing sent yet
  bool streaming_ = false;
  bool chunked_ = false;
  std::shared_ptr<IoLoop> loop_;  // once the client has gone
  std::function<void()> disconnect_callback_;
};

}  // namespace expertplex
