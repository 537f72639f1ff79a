// Chat and completions through the whole API: answers, streams, refusals, cancels.
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
using testing::Script;

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

TEST_F(ApiServerTest, TheModelsDefaultsFillWhatARequestLeavesOut) {
  start(false);
  ServedModel model = testing::tiny_model();
  model.sampling_defaults.temperature = 0.6f;
  model.sampling_defaults.top_p = 0.9f;
  model.sampling_defaults.top_k = 20;
  server_->attach(engine_, model);
  ASSERT_EQ(complete(R"({"prompt":"a","temperature":null})").status, 200);
  ASSERT_EQ(ask(post(kChat, R"({"messages":[{"role":"user","content":"a"}],"top_p":1,"top_k":-1,
                                "temperature":0})"))
                .status,
            200);
  const auto submitted = engine_.submitted();
  EXPECT_FLOAT_EQ(submitted.at(0).sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(submitted.at(0).sampling.top_p, 0.9f);
  EXPECT_EQ(submitted.at(0).sampling.top_k, 20);
  EXPECT_FLOAT_EQ(submitted.at(1).sampling.temperature, 0);
  EXPECT_FLOAT_EQ(submitted.at(1).sampling.top_p, 1);
  EXPECT_EQ(submitted.at(1).sampling.top_k, 0);
  const Json info = *parse_json(ask(get("/server_info")).body);
  EXPECT_EQ(info["default_sampling_params"],
            Json({{"temperature", 0.6}, {"top_p", 0.9}, {"top_k", 20}}));
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
  EXPECT_EQ(engine_.running(), 0);
  EXPECT_TRUE(engine_.submitted().empty());  // nothing of it was started
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

TEST_F(ApiServerTest, AnExceptionIsAnsweredWith500) {
  engine_.script = [](const GenerationRequest&) -> Script { throw std::runtime_error("a bug"); };
  for (const size_t padding : {0, 20'000}) {  // on the io thread, and by way of the worker
    const RawResponse response =
        complete(R"({"prompt":"ab","user":")" + std::string(padding, 'u') + R"("})");
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(error_of(response)["message"], "internal error");
  }
  engine_.script = nullptr;
  EXPECT_EQ(complete(R"({"prompt":"ab"})").status, 200);
}

TEST_F(ApiServerTest, ListsAreLimited) {
  const auto refused = [&](const std::string& body, const char* field, const char* text) {
    const RawResponse response = complete(body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 100);
    const Json error = error_of(response);
    EXPECT_EQ(error["param"], field);
    EXPECT_NE(error["message"].get<std::string>().find(text), std::string::npos) << error;
  };
  const auto ids = [](size_t count) {
    return R"({"prompt":"ab","stop_token_ids":)" + Json(std::vector<int>(count, 1)).dump() + "}";
  };
  EXPECT_EQ(complete(ids(256)).status, 200);
  refused(ids(257), "stop_token_ids", "at most 256 ids, got 257");
  refused(R"({"prompt":"ab","stop_token_ids":[100000]})", "stop_token_ids", "id 100000 is outside");
  refused(R"({"prompt":"ab","stop":)" + Json(std::vector<std::string>(17, "x")).dump() + "}",
          "stop", "at most 16 strings, got 17");
  const RawResponse chat = ask(
      post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"stop_token_ids":[100000]})"));
  EXPECT_EQ(chat.status, 400);
  const RawResponse tokens = ask(
      post("/detokenize", R"({"tokens":)" + Json(std::vector<int>((1 << 20) + 1, 1)).dump() + "}"));
  EXPECT_EQ(tokens.status, 400);
}

}  // namespace
}  // namespace expertplex
