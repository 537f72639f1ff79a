// The HTTP server over real sockets: framing, pipelining, keep-alive, drain.
#include <gtest/gtest.h>

#include <thread>

#include "api/http_server_fixture.h"

namespace expertplex {
namespace {

using testing::get;
using testing::HttpServerTest;
using testing::post;
using testing::RawClient;
using testing::RawResponse;

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

TEST_F(HttpServerTest, AHandlerThatThrowsGets500) {
  start();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(get("/throw") + get("/after")));
  EXPECT_EQ(client.read_response().status, 500);
  EXPECT_EQ(client.read_response().body, "GET /after ");
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

}  // namespace
}  // namespace expertplex
