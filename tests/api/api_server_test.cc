// The whole API over real sockets, with a scripted engine behind it.
#include "api/api_server.h"

#include <gtest/gtest.h>

#include "api/fake_engine.h"
#include "api/raw_client.h"
#include "api/tiny_tokenizer.h"

namespace expertplex {
namespace {

using testing::FakeEngine;
using testing::get;
using testing::post;
using testing::RawClient;
using testing::RawResponse;
using testing::Script;

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
    if (attach) server_->attach(engine_, testing::tiny_model());
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

TEST_F(ApiServerTest, ChatWhole) {
  const RawResponse response =
      ask(post(kChat, R"({"model":"tiny","messages":[{"role":"user","content":"hi"}]})"));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json body = *parse_json(response.body);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["choices"][0]["message"],
            Json({{"role", "assistant"}, {"content", "Hello, world"}}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  // <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n, one id per byte or marker
  EXPECT_EQ(engine_.submitted().at(0).prompt.size(), 1 + 5 + 2 + 1 + 1 + 1 + 10u);
  EXPECT_EQ(engine_.submitted().at(0).prompt.front(), 256);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 21);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 24);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(engine_.submitted().at(0).sampling.max_tokens.has_value());
  EXPECT_GT(engine_.submitted().at(0).accepted_at, 0);
}

TEST_F(ApiServerTest, ChatStreamHasTheAgreedOrder) {
  engine_.hold();  // one piece per step, so that pieces are not merged
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"stream":true,
                                         "stream_options":{"include_usage":true}})")));
  ASSERT_TRUE(engine_.wait_for_running(1));
  engine_.step();
  ASSERT_TRUE(client.read_until("Hello"));
  engine_.step();
  ASSERT_TRUE(client.read_until(R"("content":", ")"));
  engine_.step();
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.headers.at("content-type").starts_with("text/event-stream"));
  const auto list = events(response.body);
  ASSERT_EQ(list.size(), 7u) << response.body;
  const auto choice = [&](size_t i) { return (*parse_json(list[i]))["choices"][0]; };
  EXPECT_EQ(choice(0)["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choice(i + 1)["delta"], Json({{"content", Script{}.pieces[i]}}));
    EXPECT_TRUE(choice(i + 1)["finish_reason"].is_null());
  }
  EXPECT_EQ(choice(4)["delta"], Json::object());
  EXPECT_EQ(choice(4)["finish_reason"], "stop");
  const Json usage = *parse_json(list[5]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
  EXPECT_EQ(list[6], "[DONE]");
}

TEST_F(ApiServerTest, CompletionStreamWithoutUsage) {
  const RawResponse response = complete(R"({"prompt":"ab","stream":true})");
  const auto list = events(response.body);
  ASSERT_GE(list.size(), 3u);
  std::string text;
  int finishes = 0;
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const Json chunk = *parse_json(list[i]);
    EXPECT_FALSE(chunk.contains("usage"));
    text += chunk["choices"][0]["text"];
    finishes += !chunk["choices"][0]["finish_reason"].is_null();
  }
  EXPECT_EQ(text, "Hello, world");
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(list.back(), "[DONE]");
}

TEST_F(ApiServerTest, ListsOfPromptsAndNGiveNumberedChoices) {
  engine_.script = [](const GenerationRequest& request) {
    return Script{{fmt::format("{}/{}", request.prompt.at(0), *request.sampling.seed)},
                  FinishReason::kLength,
                  {}};
  };
  const RawResponse response = complete(R"({"prompt":[[5],[6,7]],"n":2,"seed":10,"max_tokens":1})");
  const Json body = *parse_json(response.body);
  ASSERT_EQ(body["choices"].size(), 4u);
  const char* texts[] = {"5/10", "5/11", "6/10", "6/11"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], texts[i]);
    EXPECT_EQ(body["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(ApiServerTest, EchoComesFirst) {
  EXPECT_EQ((*parse_json(complete(R"({"prompt":"Say: ","echo":true})").body))["choices"][0]["text"],
            "Say: Hello, world");
  EXPECT_EQ(
      (*parse_json(complete(R"({"prompt":[72,105],"echo":true})").body))["choices"][0]["text"],
      "HiHello, world");
  const auto list = events(complete(R"({"prompt":"Say: ","echo":true,"stream":true})").body);
  EXPECT_EQ((*parse_json(list.at(0)))["choices"][0]["text"], "Say: ");
}

TEST_F(ApiServerTest, ErrorsBeforeTheFirstTokenHaveTheirStatus) {
  engine_.script = [](const auto&) {
    return Script{{}, FinishReason::kError, make_error(ErrorCode::kInternal, "prefill died")};
  };
  const RawResponse response = complete(R"({"prompt":"a","stream":true})");
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(error_of(response)["message"], "prefill died");
  EXPECT_EQ(error_of(response)["type"], "server_error");
}

TEST_F(ApiServerTest, ErrorsInAStreamAreAnEventThenDone) {
  engine_.hold();
  engine_.script = [](const auto&) {
    return Script{{"a", "b"}, FinishReason::kError, make_error(ErrorCode::kInternal, "died")};
  };
  RawClient client(server_->port());
  ASSERT_TRUE(client.send(post(kCompletions, R"({"prompt":"a","stream":true})")));
  ASSERT_TRUE(engine_.wait_for_running(1));
  engine_.step();
  ASSERT_TRUE(client.read_until("data: "));
  engine_.step();
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 200);
  const auto list = events(response.body);
  ASSERT_EQ(list.size(), 3u) << response.body;
  EXPECT_EQ(list[1],
            R"({"error":{"message":"died","type":"server_error","param":null,"code":null}})");
  EXPECT_EQ(list[2], "[DONE]");
}

TEST_F(ApiServerTest, OneFailedChoiceCancelsTheOthers) {
  engine_.script = [](const GenerationRequest& request) {
    if (request.prompt.at(0) == 1) {
      return Script{{}, FinishReason::kError, make_error(ErrorCode::kInternal, "one died")};
    }
    return Script{std::vector<std::string>(100'000, "x"), FinishReason::kLength, {}};
  };
  EXPECT_EQ(complete(R"({"prompt":[[2],[1],[2]]})").status, 500);
  EXPECT_TRUE(engine_.wait_for_running(0));
}

TEST_F(ApiServerTest, AFullQueueIs429AndLeavesNothingBehind) {
  engine_.hold();
  engine_.set_queue_limit(2);
  const RawResponse response = complete(R"({"prompt":[[1],[2],[3]]})");
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(error_of(response)["type"], "rate_limit_error");
  EXPECT_TRUE(engine_.wait_for_running(0));
}

TEST_F(ApiServerTest, DisconnectCancels) {
  engine_.hold();
  for (const char* stream : {"true", "false"}) {
    RawClient client(server_->port());
    ASSERT_TRUE(client.send(
        post(kCompletions, fmt::format(R"({{"prompt":"a","n":3,"stream":{}}})", stream))));
    ASSERT_TRUE(engine_.wait_for_running(3));
    client.close();
    EXPECT_TRUE(engine_.wait_for_running(0)) << stream;
  }
  EXPECT_EQ(engine_.statistics().finished_cancelled, 6u);
}

TEST_F(ApiServerTest, LongBodiesGoThroughTheWorker) {
  start(false);
  server_->attach(engine_, testing::tiny_model(100'000));
  const std::string text(50'000, 'a');
  const RawResponse response = complete(fmt::format(R"({{"prompt":"{}"}})", text));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(engine_.submitted().at(0).prompt.size(), 50'000u);
}

TEST_F(ApiServerTest, TooLongPromptsSayTheNumbers) {
  const RawResponse response = complete(fmt::format(R"({{"prompt":"{}"}})", std::string(200, 'a')));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(
      response.body,
      R"({"error":{"message":"this model's context is 128 tokens, and the prompt has 200 of them,)"
      R"( which leaves none for the answer; shorten the prompt","type":"invalid_request_error",)"
      R"("param":"prompt","code":"context_length_exceeded"}})");
  const RawResponse asked = complete(R"({"prompt":"abc","max_tokens":126})");
  EXPECT_EQ(asked.status, 400);
  EXPECT_EQ(
      error_of(asked)["message"],
      "this model's context is 128 tokens, but 129 were requested: 3 in the prompt and 126 for "
      "the answer; shorten the prompt or lower max_tokens");
  EXPECT_EQ(complete(R"({"prompt":"abc","max_tokens":125})").status, 200);
  EXPECT_EQ(error_of(complete(R"({"prompt":""})"))["message"],
            "field 'prompt': the prompt has no tokens");
  EXPECT_EQ(error_of(complete(R"({"prompt":[258]})"))["message"],
            "field 'prompt': the token id 258 is outside the vocabulary of 258");
}

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

TEST_F(ApiServerTest, ChatWithoutATemplateIsRefused) {
  start(false);
  ServedModel model = testing::tiny_model();
  model.chat_template = nullptr;
  server_->attach(engine_, model);
  const RawResponse response = ask(post(kChat, R"({"messages":[{"role":"user","content":"hi"}]})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_of(response)["code"], "chat_template_missing");
  EXPECT_EQ(complete(R"({"prompt":"a"})").status, 200);
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

// Many streams, random disconnects: nothing is left behind.
TEST_F(ApiServerTest, ManyStreamsWithRandomDisconnects) {
  engine_.script = [](const auto&) {
    return Script{std::vector<std::string>(50, "word "), FinishReason::kLength, {}};
  };
  engine_.hold();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(clients.back()->send(post(kCompletions, R"({"prompt":"a","stream":true})")));
  }
  ASSERT_TRUE(engine_.wait_for_running(200));
  for (int step = 0; step < 10; ++step) {
    engine_.step();
    for (int i = step; i < 200; i += 20) clients[i].reset();
  }
  ASSERT_TRUE(engine_.wait_for_running(100));
  engine_.release();
  for (const auto& client : clients) {
    if (!client) continue;
    EXPECT_EQ(events(client->read_response().body).back(), "[DONE]");
  }
  EXPECT_EQ(engine_.running(), 0);
}

}  // namespace
}  // namespace expertplex
