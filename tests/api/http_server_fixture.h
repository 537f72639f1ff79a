// The HTTP server with a handler for tests, and what its tests wait for.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "api/api_error.h"
#include "api/http_server.h"
#include "api/raw_client.h"

namespace expertplex::testing {

// Counts things that happen on the io thread, for tests that wait for them.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  bool wait_for(int value) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return value_ >= value; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

// Paths: /echo answers with method, path and body; /wait never answers; /stream sends three events;
// /flood streams until it is told that the client has gone; /later answers from a posted function.
class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.port = 0;
    options_.tick = 20 * kMillisecond;
  }

  void start() {
    auto server = HttpServer::listen(
        options_, [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); },
        [this](const HttpRecord& record) {
          last_status_ = record.status;
          records_.add();
        });
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
    server_->start();
  }

  void handle(std::shared_ptr<Exchange> exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/wait") {
      exchange->on_disconnect([this] { gone_.add(); });
      waiting_ = exchange;
      entered_.add();
    } else if (request.path == "/stream") {
      HttpResponse head;
      head.content_type = "text/event-stream";
      exchange->start_stream(std::move(head));
      for (const char* event : {"one ", "two ", "three"}) exchange->write(event);
      exchange->end_stream();
    } else if (request.path == "/flood") {
      exchange->on_disconnect([this] { gone_.add(); });
      exchange->start_stream({});
      flood(std::move(exchange));
    } else if (request.path == "/later") {
      server_->loop()->post([exchange] { exchange->respond(HttpResponse{200, "", "later", {}}); });
    } else if (request.path == "/throw") {
      throw std::runtime_error("handler bug");
    } else {
      exchange->respond(
          HttpResponse{200,
                       "text/plain",
                       fmt::format("{} {} {}", request.method, request.path, request.body),
                       {}});
    }
  }

  void flood(std::shared_ptr<Exchange> exchange) {
    if (exchange->gone()) return;
    exchange->write(std::string(16384, 'x'));
    server_->loop()->post([this, exchange] { flood(exchange); });
  }

  RawResponse ask(std::string_view bytes) {
    RawClient client(server_->port());
    EXPECT_TRUE(client.send(bytes));
    return client.read_response();
  }

  HttpServerOptions options_;
  std::shared_ptr<Exchange> waiting_;
  Counter entered_, gone_, records_;
  std::atomic<int> last_status_{0};
  std::unique_ptr<HttpServer> server_;  // goes first: its thread uses the others
};

}  // namespace expertplex::testing
