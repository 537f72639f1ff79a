// The whole API over real sockets, with a scripted engine behind it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_server.h"
#include "api/fake_engine.h"
#include "api/raw_client.h"
#include "api/tiny_tokenizer.h"

namespace expertplex::testing {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

class ApiServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start(true); }

  void start(bool attach) {
    ApiOptions options;
    options.http.port = 0;
    options.http.tick = 20 * kMillisecond;
    options.probe_limit = probe_limit_;
    server_.reset();
    auto server = ApiServer::start(options);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(*server);
    if (attach) server_->attach(engine_, tiny_model());
  }

  RawResponse ask(std::string_view bytes) {
    RawClient client(server_->port());
    EXPECT_TRUE(client.send(bytes));
    return client.read_response();
  }
  RawResponse complete(const std::string& body) { return ask(post(kCompletions, body)); }

  // The events of a stream, each without "data: ".
  static std::vector<std::string> events(const std::string& body) {
    std::vector<std::string> list;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_TRUE(body.substr(at).starts_with("data: ")) << body.substr(at, 50);
      if (end == std::string::npos) break;
      list.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return list;
  }

  static Json error_of(const RawResponse& response) {
    auto body = parse_json(response.body);
    EXPECT_TRUE(body.ok()) << response.body;
    return body.ok() ? (*body)["error"] : Json();
  }

  Nanoseconds probe_limit_ = 10 * kSecond;
  FakeEngine engine_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace expertplex::testing
