// The HTTP server against clients that send too much, too slowly or nonsense, do not read, or go
// away.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "api/http_server_fixture.h"
#include "base/random.h"

namespace expertplex {
namespace {

using testing::get;
using testing::HttpServerTest;
using testing::post;
using testing::RawClient;
using testing::RawResponse;

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

TEST_F(HttpServerTest, BodiesOfAllConnectionsAreLimitedTogether) {
  options_.max_bodies_bytes = 1000;
  start();
  {
    RawClient first(server_->port());
    ASSERT_TRUE(
        first.send("POST /echo HTTP/1.1\r\nContent-Length: 600\r\n\r\n" + std::string(599, 'x')));
    // Until the server has seen the first one.
    int status = 200;
    for (int i = 0; i < 1000 && status != 503; ++i) {
      status = ask(post("/echo", std::string(600, 'y'))).status;
    }
    EXPECT_EQ(status, 503);
    EXPECT_EQ(ask(post("/echo", std::string(300, 'y'))).status, 200);
    EXPECT_EQ(ask(get("/echo")).status, 200);
    ASSERT_TRUE(first.send("x"));
    EXPECT_EQ(first.read_response().status, 200);
  }
  EXPECT_EQ(ask(post("/echo", std::string(1000, 'y'))).status, 200);
}

// What a client says that it will send costs nothing.
TEST_F(HttpServerTest, AnnouncedBodiesHoldNoMemory) {
  options_.max_body_bytes = 1000;
  options_.max_bodies_bytes = 1000;
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(clients.back()->send(
        i % 2 == 0 ? "POST /echo HTTP/1.1\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"
                   : "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
                     "Expect: 100-continue\r\n\r\n"));
    EXPECT_TRUE(clients.back()->read_until("100 Continue\r\n\r\n"));
  }
  EXPECT_EQ(ask(post("/echo", std::string(900, 'y'))).status, 200);
  EXPECT_EQ(
      ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n").status,
      200);
}

TEST_F(HttpServerTest, ChunkExtensionsAndTrailersAreLimited) {
  options_.max_header_bytes = 1000;
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(ask(head + "1;" + std::string(2000, 'e')).status, 431);
  EXPECT_EQ(ask(head + "1\r\nx\r\n0\r\nA: " + std::string(2000, 't')).status, 431);
  std::string trailers;
  for (int i = 0; i < 200; ++i) trailers += fmt::format("T{}: value\r\n", i);
  EXPECT_EQ(ask(head + "1\r\nx\r\n0\r\n" + trailers).status, 431);
  EXPECT_EQ(ask(head + "1;name=value\r\nx\r\n0\r\nA: b\r\n\r\n").body, "POST /echo x");
}

TEST_F(HttpServerTest, OtherTransferCodingsAreRefused) {
  start();
  for (const char* coding : {"gzip", "gzip, chunked", "chunked, gzip", "identity", "xchunked"}) {
    const RawResponse response = ask(fmt::format(
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: {}\r\n\r\n1\r\nx\r\n0\r\n\r\n", coding));
    EXPECT_EQ(response.status, 501) << coding;
    EXPECT_EQ(response.headers.at("connection"), "close");
  }
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n").status, 200);
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

TEST_F(HttpServerTest, ABodyThatStallsIsCutEarly) {
  options_.body_progress_limit = 200 * kMillisecond;
  start();
  EXPECT_EQ(ask("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").status, 408);
}

// A server that stopped reading would not see that the client has left.
TEST_F(HttpServerTest, DisconnectBehindPipelinedRequestsIsNoticed) {
  options_.max_pipelined_bytes = 100'000;
  start();
  for (const size_t bytes : {50'000, 300'000}) {
    RawClient client(server_->port());
    ASSERT_TRUE(client.send(get("/wait")));
    ASSERT_TRUE(entered_.wait_for(bytes < 100'000 ? 1 : 2));
    client.send(std::string(bytes, 'x'));
    client.close();
    EXPECT_TRUE(gone_.wait_for(bytes < 100'000 ? 1 : 2));
  }
}

TEST_F(HttpServerTest, PipelinedBytesOfAllConnectionsAreLimitedTogether) {
  options_.max_bodies_bytes = 10'000;
  start();
  {
    RawClient client(server_->port());
    ASSERT_TRUE(client.send(get("/wait")));
    ASSERT_TRUE(entered_.wait_for(1));
    ASSERT_TRUE(client.send(std::string(20'000, 'x')));
    int status = 200;
    for (int i = 0; i < 1000 && status != 503; ++i)
      status = ask(post("/echo", "y", "A: b\r\n")).status;
    EXPECT_EQ(status, 503);
  }
  EXPECT_TRUE(gone_.wait_for(1));
  EXPECT_EQ(ask(post("/echo", "y")).status, 200);
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
