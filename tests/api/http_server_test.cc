// The HTTP server over real sockets: framing, limits, pipelining, disconnects, slow clients.
#include "api/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "api/api_error.h"
#include "api/raw_client.h"
#include "base/random.h"

namespace expertplex {
namespace {

using testing::get;
using testing::post;
using testing::RawClient;
using testing::RawResponse;

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
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return value_ >= value; });
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
  std::unique_ptr<HttpServer> server_;
  std::shared_ptr<Exchange> waiting_;
  Counter entered_, gone_, records_;
  std::atomic<int> last_status_{0};
};

TEST_F(HttpServerTest, KeepAliveRequestsOneAfterTheOther) {
  start();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post("/echo", "body" + std::to_string(i))));
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST /echo body" + std::to_string(i));
    EXPECT_FALSE(response.headers.count("connection"));
    EXPECT_TRUE(response.headers.count("date"));
  }
  EXPECT_EQ(server_->open_connections(), 1);
}

TEST_F(HttpServerTest, ConnectionCloseAndHttp10) {
  start();
  RawClient closing(server_->port());
  ASSERT_TRUE(closing.send(get("/echo", "Connection: close\r\n")));
  EXPECT_EQ(closing.read_response().headers["connection"], "close");
  EXPECT_TRUE(closing.closed_by_peer());

  RawClient old(server_->port());
  ASSERT_TRUE(old.send("GET /stream HTTP/1.0\r\n\r\n"));
  const RawResponse response = old.read_response();
  EXPECT_FALSE(response.headers.count("transfer-encoding"));
  EXPECT_EQ(response.body, "one two three");
}

TEST_F(HttpServerTest, StreamsAreChunked) {
  start();
  RawClient client(server_->port());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.send(get("/stream")));
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.headers.at("transfer-encoding"), "chunked");
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(response.body, "one two three");
  }
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send("HEAD /echo HTTP/1.1\r\nHost: t\r\n\r\n" + get("/echo")));
  EXPECT_EQ(client.read_response(true).headers["content-length"], "11");
  EXPECT_EQ(client.read_response().body, "GET /echo ");
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  std::string all;
  for (int i = 0; i < 2000; ++i) {
    const std::string number = std::to_string(i);
    all += i % 3 == 0   ? post("/echo", number) + "\r\n"
           : i % 3 == 1 ? get("/later")
                        : get("/" + number);
  }
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 2000; ++i) {
    const std::string number = std::to_string(i);
    const RawResponse response = client.read_response();
    ASSERT_EQ(response.body, i % 3 == 0   ? "POST /echo " + number
                             : i % 3 == 1 ? "later"
                                          : "GET /" + number + " ");
  }
}

TEST_F(HttpServerTest, PipelinedRequestsBeforeTheEndOfInputAreAnswered) {
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(get("/a") + get("/b") + get("/c")));
  client.shutdown_send();
  const std::string all = client.read_all();
  EXPECT_NE(all.find("GET /a "), std::string::npos);
  EXPECT_NE(all.find("GET /c "), std::string::npos);
}

TEST_F(HttpServerTest, RequestsInSingleBytes) {
  start();
  RawClient client(server_->port());
  for (const char c : post("/echo", "ab")) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(client.read_response().body, "POST /echo ab");
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  EXPECT_EQ(client.read_response().body, "POST /echo abcde");
}

TEST_F(HttpServerTest, PathsAreDecodedAndQueriesCutOff) {
  start();
  EXPECT_EQ(ask(get("/a%2Fb%20c?x=1#y")).body, "GET /a/b c ");
  EXPECT_EQ(ask(get("/a%zz%4")).body, "GET /a%zz%4 ");
}

TEST_F(HttpServerTest, RequestIdIsEchoedOrMade) {
  start();
  EXPECT_EQ(ask(get("/echo", "X-Request-Id: my-id-1\r\n")).headers["x-request-id"], "my-id-1");
  EXPECT_TRUE(ask(get("/echo")).headers["x-request-id"].starts_with("req-"));
  EXPECT_TRUE(ask(get("/echo", "X-Request-Id: " + std::string(300, 'x') + "\r\n"))
                  .headers["x-request-id"]
                  .starts_with("req-"));
}

TEST_F(HttpServerTest, ExpectContinue) {
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_response().status, 100);
  ASSERT_TRUE(client.send("ok"));
  EXPECT_EQ(client.read_response().body, "POST /echo ok");
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: magic\r\n\r\n").status, 417);
}

TEST_F(HttpServerTest, LimitsAreAnswered) {
  options_.max_header_bytes = 1000;
  options_.max_body_bytes = 100;
  start();
  const RawResponse head = ask(get("/echo", "X: " + std::string(2000, 'x') + "\r\n"));
  EXPECT_EQ(head.status, 431);
  const RawResponse body = ask(post("/echo", std::string(101, 'x')));
  EXPECT_EQ(body.status, 413);
  EXPECT_EQ(body.body,
            R"({"error":{"message":"the body is larger than 100 bytes; shorten the request",)"
            R"("type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_EQ(body.headers.at("connection"), "close");
  // Before a byte of the body is sent.
  EXPECT_EQ(
      ask("POST /echo HTTP/1.1\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n").status,
      413);
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" +
                std::string(0x80, 'x'))
                .status,
            413);
  EXPECT_EQ(ask(post("/echo", std::string(100, 'x'))).status, 200);
}

TEST_F(HttpServerTest, AnswerToAHugeBodyIsNotLost) {
  start();
  RawClient client(server_->port());
  const size_t size = options_.max_body_bytes + 1;
  ASSERT_TRUE(client.send(fmt::format("POST /echo HTTP/1.1\r\nContent-Length: {}\r\n\r\n", size)));
  const std::string part(1 << 20, 'x');
  for (size_t sent = 0; sent < (size_t{8} << 20); sent += part.size()) client.send(part);
  EXPECT_EQ(client.read_response().status, 413);
}

TEST_F(HttpServerTest, GarbageGets400) {
  start();
  EXPECT_EQ(ask("\x16\x03\x01 hello\r\n\r\n").status, 400);
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nbad header line\r\n\r\n").status, 400);
  EXPECT_EQ(ask("POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n").status, 400);
  EXPECT_EQ(ask("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n").status, 400);
  EXPECT_EQ(ask("GET / HTTP/3.7\r\n\r\n").status, 505);
}

TEST_F(HttpServerTest, AHandlerThatThrowsGets500) {
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(get("/throw") + get("/after")));
  EXPECT_EQ(client.read_response().status, 500);
  EXPECT_EQ(client.read_response().body, "GET /after ");
}

TEST_F(HttpServerTest, DisconnectWhileWaitingIsNoticed) {
  start();
  for (const bool half : {false, true}) {
    RawClient client(server_->port());
    ASSERT_TRUE(client.send(get("/wait")));
    ASSERT_TRUE(entered_.wait_for(half ? 2 : 1));
    half ? client.shutdown_send() : client.close();
    EXPECT_TRUE(gone_.wait_for(half ? 2 : 1));
  }
  EXPECT_EQ(last_status_, kStatusClientGone);
  // Late answers to nobody are harmless.
  waiting_->respond(HttpResponse{});
  waiting_->start_stream({});
  waiting_->write("x");
  waiting_->end_stream();
  EXPECT_EQ(server_->open_connections(), 0);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsGivenUp) {
  options_.max_unread_bytes = 100'000;
  start();
  RawClient client(server_->port(), 4096);
  ASSERT_TRUE(client.send(get("/flood")));
  EXPECT_TRUE(gone_.wait_for(1));
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsGivenUpInTime) {
  options_.max_unread_bytes = size_t{1} << 40;
  options_.write_limit = 100 * kMillisecond;
  start();
  RawClient client(server_->port(), 4096);
  ASSERT_TRUE(client.send(get("/flood")));
  EXPECT_TRUE(gone_.wait_for(1));
}

TEST_F(HttpServerTest, SlowRequestsRunIntoLimits) {
  options_.head_limit = options_.body_limit = options_.idle_limit = 100 * kMillisecond;
  start();
  RawClient idle(server_->port());
  EXPECT_TRUE(idle.closed_by_peer());
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost:").status, 408);
  EXPECT_EQ(ask("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").status, 408);
}

TEST_F(HttpServerTest, AnswersThatNeverComeRunIntoALimit) {
  options_.answer_limit = 100 * kMillisecond;
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(get("/wait")));
  EXPECT_TRUE(gone_.wait_for(1));
  EXPECT_TRUE(client.closed_by_peer());
}

TEST_F(HttpServerTest, TooManyConnectionsAreClosed) {
  options_.max_connections = 2;
  start();
  RawClient first(server_->port()), second(server_->port());
  ASSERT_TRUE(first.send(get("/a")) && second.send(get("/b")));
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(second.read_response().status, 200);
  RawClient third(server_->port());
  EXPECT_TRUE(third.closed_by_peer());
}

TEST_F(HttpServerTest, ThePortInUseIsOneClearLine) {
  start();
  HttpServerOptions options;
  options.port = server_->port();
  const auto second = HttpServer::listen(options, {}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(
      second.error().message,
      fmt::format("cannot listen on 127.0.0.1:{}: the port is in use; choose another with --port",
                  options.port));
  options.host = "no.such.host.invalid";
  EXPECT_FALSE(HttpServer::listen(options, {}, {}).ok());
  options.host = "127.0.0.1";
  options.port = 70000;
  EXPECT_FALSE(HttpServer::listen(options, {}, {}).ok());
}

TEST_F(HttpServerTest, DrainLetsAnswersFinishAndClosesIdleConnections) {
  start();
  RawClient idle(server_->port()), busy(server_->port());
  ASSERT_TRUE(idle.send(get("/a")));
  EXPECT_EQ(idle.read_response().status, 200);
  ASSERT_TRUE(busy.send(get("/wait")));
  ASSERT_TRUE(entered_.wait_for(1));
  std::thread answer([&] {
    EXPECT_TRUE(idle.closed_by_peer());  // by then the drain has begun
    server_->loop()->post([this] { waiting_->respond(HttpResponse{200, "", "done", {}}); });
  });
  EXPECT_EQ(server_->drain(10 * kSecond), 0);
  answer.join();
  const RawResponse response = busy.read_response();
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(response.headers.at("connection"), "close");
}

TEST_F(HttpServerTest, DrainCutsWhatDoesNotFinish) {
  start();
  RawClient busy(server_->port());
  ASSERT_TRUE(busy.send(get("/wait")));
  ASSERT_TRUE(entered_.wait_for(1));
  EXPECT_EQ(server_->drain(50 * kMillisecond), 1);
  EXPECT_TRUE(gone_.wait_for(1));
  EXPECT_TRUE(busy.closed_by_peer());
}

// Random bytes and mutated requests: the server answers or closes, and goes on serving.
TEST_F(HttpServerTest, FuzzedBytes) {
  options_.head_limit = options_.body_limit = options_.idle_limit = 100 * kMillisecond;
  start();
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = post("/echo", "0123456789", "Transfer-Encoding: chunked\r\nX-A: b\r\n");
    for (uint64_t changes = random.below(6); changes > 0; --changes) {
      const size_t at = random.below(bytes.size());
      if (random.chance(0.5)) {
        bytes[at] = static_cast<char>(random.below(256));
      } else {
        bytes.erase(at, random.below(10));
      }
      if (bytes.empty()) bytes = "x";
    }
    RawClient client(server_->port());
    client.send(bytes);
    client.shutdown_send();
    EXPECT_TRUE(client.closed_by_peer()) << bytes;
  }
  EXPECT_EQ(ask(get("/fine")).body, "GET /fine ");
}

}  // namespace
}  // namespace expertplex
