// The other routes, and the life of the server: starting, draining.
#include <gtest/gtest.h>

#include "api/api_server_fixture.h"

namespace expertplex {
namespace {

using testing::ApiServerTest;
using testing::get;
using testing::kChat;
using testing::kCompletions;
using testing::post;
using testing::RawClient;
using testing::RawResponse;

TEST_F(ApiServerTest, UnknownModelsAndRoutes) {
  const RawResponse model = complete(R"({"model":"gpt-4","prompt":"a"})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.body,
            R"({"error":{"message":"the model 'gpt-4' does not exist; this server has 'tiny'",)"
            R"("type":"invalid_request_error","param":"model","code":"model_not_found"}})");
  EXPECT_EQ(complete(R"({"model":"tiny-alias","prompt":"a"})").status, 200);
  const RawResponse route = ask(get("/v1/nothing"));
  EXPECT_EQ(route.status, 404);
  EXPECT_EQ(error_of(route)["message"], "there is nothing at /v1/nothing");
  const RawResponse method = ask(get(kChat));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_EQ(error_of(method)["message"], "/v1/chat/completions takes POST, not GET");
}

TEST_F(ApiServerTest, Models) {
  EXPECT_EQ(ask(get("/v1/models/tiny")).body,
            R"({"id":"tiny","object":"model","created":1700000000,"owned_by":"expertplex",)"
            R"("root":"tiny","parent":null,"max_model_len":128,"permission":[]})");
  const Json list = *parse_json(ask(get("/v1/models")).body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(ask(get("/v1/models/other")).status, 404);
}

TEST_F(ApiServerTest, TokenizeAndDetokenize) {
  EXPECT_EQ(ask(post("/tokenize", R"({"model":"tiny","prompt":"Hi<|im_end|>"})")).body,
            R"({"count":3,"max_model_len":128,"tokens":[72,105,257]})");
  EXPECT_EQ(ask(post("/v1/detokenize", R"({"tokens":[72,105,257]})")).body,
            R"({"prompt":"Hi<|im_end|>"})");
  EXPECT_EQ(ask(post("/detokenize", R"({"tokens":[255]})")).body, "{\"prompt\":\"\xEF\xBF\xBD\"}");
  const Json chat =
      *parse_json(ask(post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})")).body);
  EXPECT_EQ(chat["count"], 21);
  EXPECT_EQ(error_of(ask(post("/tokenize", "{}")))["param"], "prompt");
  EXPECT_EQ(error_of(ask(post("/detokenize", R"({"tokens":"x"})")))["param"], "tokens");
}

TEST_F(ApiServerTest, HealthFollowsTheEngine) {
  const RawResponse healthy = ask(get("/health"));
  EXPECT_EQ(healthy.status, 200);
  EXPECT_EQ(healthy.body, "");
  engine_.set_health({false, "decode server 0 has not moved for 31 s"});
  const RawResponse sick = ask(get("/health"));
  EXPECT_EQ(sick.status, 503);
  EXPECT_EQ(error_of(sick)["message"], "decode server 0 has not moved for 31 s");
}

TEST_F(ApiServerTest, ReadyGeneratesOneToken) {
  EXPECT_EQ(ask(get("/ready")).status, 200);
  EXPECT_EQ(ask(get("/health_generate")).status, 200);
  EXPECT_EQ(engine_.submitted().at(0).sampling.max_tokens, 1);
  engine_.set_queue_limit(0);
  EXPECT_EQ(ask(get("/ready")).status, 503);
}

TEST_F(ApiServerTest, ReadyHasALimit) {
  probe_limit_ = 50 * kMillisecond;
  start(true);
  engine_.hold();
  const RawResponse response = ask(get("/ready"));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(error_of(response)["message"], "the one-token probe failed: no token within 0.05 s");
  EXPECT_TRUE(engine_.wait_for_running(0));
}

TEST_F(ApiServerTest, BeforeTheModelIsThere) {
  start(false);
  for (const char* path : {"/health", "/ready", "/v1/models", "/server_info"}) {
    const RawResponse response = ask(get(path));
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(error_of(response)["message"], "the model is being loaded");
    EXPECT_EQ(response.headers.at("retry-after"), "1");
  }
  EXPECT_EQ(complete(R"({"prompt":"a"})").status, 503);
  EXPECT_EQ(ask(get("/version")).body, R"({"version":")" EXPERTPLEX_VERSION R"("})");
  EXPECT_EQ(ask(get("/metrics")).status, 200);
  server_->attach(engine_, testing::tiny_model());
  EXPECT_EQ(ask(get("/health")).status, 200);
}

TEST_F(ApiServerTest, DrainFinishesStreamsAndRefusesNewOnes) {
  engine_.hold();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(post(kCompletions, R"({"prompt":"a","stream":true})")));
  ASSERT_TRUE(engine_.wait_for_running(1));
  engine_.step();
  ASSERT_TRUE(client.read_until("Hello"));
  server_->begin_drain();
  const RawResponse refused = complete(R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(error_of(refused)["message"], "the server is stopping");
  EXPECT_EQ(ask(get("/health")).status, 503);
  engine_.release();
  EXPECT_TRUE(engine_.drain(10 * kSecond).ok());
  EXPECT_EQ(server_->stop(10 * kSecond), 0);
  const RawResponse response = client.read_response();
  EXPECT_EQ(events(response.body).back(), "[DONE]");
  EXPECT_FALSE(RawClient(server_->port()).connected());
}

TEST_F(ApiServerTest, WhatADrainCancelsIsToldSo) {
  engine_.hold();
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(post(kCompletions, R"({"prompt":"a"})")));
  ASSERT_TRUE(engine_.wait_for_running(1));
  server_->begin_drain();
  EXPECT_TRUE(engine_.drain(10 * kMillisecond).ok());
  EXPECT_EQ(server_->stop(10 * kSecond), 0);
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(error_of(response)["message"],
            "the request was cancelled because the server is stopping");
}

TEST_F(ApiServerTest, ServerInfoAndMetrics) {
  const Json info = *parse_json(ask(get("/get_server_info")).body);
  EXPECT_EQ(info["backend"], "fake");
  EXPECT_EQ(info["max_model_len"], 128);
  EXPECT_EQ(info["served_model_names"], Json({"tiny", "tiny-alias"}));
  complete(R"({"prompt":"a"})");
  complete("not json");
  const std::string metrics = ask(get("/metrics")).body;
  for (const char* line :
       {R"(route="/v1/completions",status="200"} 1)", R"(route="/v1/completions",status="400"} 1)",
        R"(route="/get_server_info",status="200"} 1)"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace expertplex
