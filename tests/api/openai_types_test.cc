// Requests: what is accepted, what is refused, and with which words.
#include "api/openai_types.h"

#include <gtest/gtest.h>

#include "api/unknown_fields.h"
#include "base/random.h"

namespace expertplex {
namespace {

ChatRequest parse_chat_ok(const std::string& body) {
  ChatRequest request;
  const auto error = parse_chat_request(body, request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

CompletionRequest parse_completion_ok(const std::string& body) {
  CompletionRequest request;
  const auto error = parse_completion_request(body, request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

// A chat request with one more field.
std::string chat_with(const std::string& field) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + field + "}";
}

std::string completion_with(const std::string& field) { return R"({"prompt":"hi",)" + field + "}"; }

TEST(ChatRequestTest, TakesEveryField) {
  const ChatRequest request = parse_chat_ok(R"({
    "model": "m", "messages": [{"role": "system", "content": "s"},
                               {"role": "user", "content": "u", "name": "kept"}],
    "max_tokens": 3, "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
    "seed": 7, "stop": ["a", "b"], "stop_token_ids": [1, 2], "ignore_eos": true, "min_tokens": 1,
    "stream": true, "stream_options": {"include_usage": true}, "user": "someone", "n": 2,
    "skip_special_tokens": false, "include_stop_str_in_output": true,
    "add_generation_prompt": false, "chat_template_kwargs": {"enable_thinking": true},
    "a_field_that_nobody_knows": {"x": 1}})");
  EXPECT_EQ(request.options.model, "m");
  EXPECT_EQ(request.messages.size(), 2u);
  EXPECT_EQ(request.messages[1]["name"], "kept");
  const SamplingParams& sampling = request.options.sampling;
  EXPECT_EQ(sampling.max_tokens, 5);
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.seed, 7u);
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.min_tokens, 1);
  EXPECT_FALSE(sampling.skip_special_tokens);
  EXPECT_TRUE(sampling.include_stop_str_in_output);
  EXPECT_TRUE(request.options.stream);
  EXPECT_TRUE(request.options.include_usage);
  EXPECT_EQ(request.options.n, 2);
  EXPECT_FALSE(request.add_generation_prompt);
  EXPECT_EQ(request.template_arguments, Json({{"enable_thinking", true}}));
}

TEST(ChatRequestTest, DefaultsAreOpenAis) {
  const ChatRequest request = parse_chat_ok(R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_FALSE(request.options.sampling.max_tokens.has_value());
  EXPECT_FLOAT_EQ(request.options.sampling.temperature, 1.0f);
  EXPECT_EQ(request.options.n, 1);
  EXPECT_FALSE(request.options.stream);
  EXPECT_TRUE(request.add_generation_prompt);
}

TEST(ChatRequestTest, TextPartsAreJoined) {
  const ChatRequest request = parse_chat_ok(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
          {"type":"text","text":"b"}]}, {"role":"assistant","content":null}]})");
  EXPECT_EQ(request.messages[0]["content"], "a\nb");
  EXPECT_TRUE(request.messages[1]["content"].is_null());
}

TEST(ChatRequestTest, NeutralValuesOfUnsupportedFieldsAreAccepted) {
  parse_chat_ok(chat_with(
      R"("logprobs":false,"top_logprobs":0,"tools":[],"tool_choice":"none","logit_bias":{},
         "presence_penalty":0.0,"frequency_penalty":0,"repetition_penalty":1.0,"best_of":1,
         "response_format":{"type":"text"},"min_p":0,"stop":null,"seed":null,"functions":null,
         "stream_options":null,"max_tokens":null,"top_k":-1,"return_token_ids":false,
         "detokenize":true,"guided_json":null)"));
}

TEST(ChatRequestTest, FieldsThatNobodyKnowsAreListed) {
  const ChatRequest chat = parse_chat_ok(
      chat_with(R"("temperatur":1,"metadata":{"a":"b"},"max_tokens":3,"user":"u","x\ny":0)"));
  EXPECT_EQ(chat.options.unknown_fields, (std::vector<std::string>{"temperatur", "x\ny"}));
  EXPECT_TRUE(parse_completion_ok(completion_with(R"("echo":false,"logprobs":null,"seed":1)"))
                  .options.unknown_fields.empty());
}

TEST(UnknownFieldsTest, AreNamedOnceAndWithinBounds) {
  UnknownFields unknown;
  EXPECT_EQ(unknown.take_new({"a", "b\n"}), (std::vector<std::string>{R"("a")", R"("b\n")"}));
  EXPECT_EQ(unknown.take_new({"a", "c"}), (std::vector<std::string>{R"("c")"}));
  EXPECT_EQ(unknown.take_new({std::string(1000, 'x')}).at(0).size(),
            UnknownFields::kMaxNameBytes + 2);
  size_t named = 0;
  for (size_t i = 0; i < 2 * UnknownFields::kMaxNames; ++i) {
    named += unknown.take_new({std::to_string(i)}).size();
  }
  EXPECT_LT(named, UnknownFields::kMaxNames);
}

TEST(CompletionRequestTest, EveryKindOfPrompt) {
  EXPECT_EQ(std::get<std::string>(parse_completion_ok(R"({"prompt":"x"})").prompts.at(0)), "x");
  const auto strings = parse_completion_ok(R"({"prompt":["x","y"]})").prompts;
  ASSERT_EQ(strings.size(), 2u);
  EXPECT_EQ(std::get<std::string>(strings[1]), "y");
  const auto ids = parse_completion_ok(R"({"prompt":[1,2,3]})").prompts;
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(ids[0]), (std::vector<int32_t>{1, 2, 3}));
  const auto lists = parse_completion_ok(R"({"prompt":[[1],[2,3]]})").prompts;
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(lists[1]), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(parse_completion_ok(R"({"prompt":"x"})").options.sampling.max_tokens, 16);
}

TEST(CompletionRequestTest, SeedsOfEverySign) {
  EXPECT_EQ(
      parse_completion_ok(completion_with(R"("seed":18446744073709551615)")).options.sampling.seed,
      UINT64_MAX);
  EXPECT_EQ(parse_completion_ok(completion_with(R"("seed":-1)")).options.sampling.seed, UINT64_MAX);
}

struct Refusal {
  std::string body;
  std::string param;  // "" for null
  std::string message;
};

TEST(ChatRequestTest, RefusalsNameTheField) {
  const Refusal refusals[] = {
      {"[]", "", "the body: expected a JSON object, got an array"},
      {"{}", "messages", "field 'messages': missing"},
      {R"({"messages":[]})", "messages",
       "field 'messages': expected a list of 1 to 16384 messages, got a list of 0"},
      {R"({"messages":"hi"})", "messages",
       "field 'messages': expected a list of 1 to 16384 messages, got a string"},
      {R"({"messages":[1]})", "messages[0]",
       "field 'messages[0]': expected an object, got an integer"},
      {R"({"messages":[{"role":"user","content":"a"},{"content":"b"}]})", "messages[1].role",
       "field 'messages[1].role': expected system, developer, user, assistant, tool, function, got "
       "nothing"},
      {R"({"messages":[{"role":"robot","content":"a"}]})", "messages[0].role",
       "field 'messages[0].role': expected system, developer, user, assistant, tool, function, got "
       "\"robot\""},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content",
       "field 'messages[0].content': missing"},
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content",
       "field 'messages[0].content': expected a string or a list of text parts, got null"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content",
       "field 'messages[0].content': expected a string or a list of text parts, got an integer"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content",
       "field 'messages[0].content': expected parts like {\"type\":\"text\",\"text\":\"...\"}; "
       "this "
       "model reads only text"},
      {chat_with(R"("temperature":"hot")"), "temperature",
       "field 'temperature': expected a number, got a string"},
      {chat_with(R"("temperature":2.5)"), "temperature",
       "field 'temperature': expected 0 to 2, got 2.5"},
      {chat_with(R"("top_p":0)"), "top_p", "field 'top_p': expected above 0 and at most 1, got 0"},
      {chat_with(R"("top_k":-2)"), "top_k",
       "field 'top_k': expected at least 0 (0: all tokens), got -2"},
      {chat_with(R"("max_tokens":0)"), "max_tokens",
       "field 'max_tokens': expected at least 1, got 0"},
      {chat_with(R"("max_completion_tokens":-1)"), "max_completion_tokens",
       "field 'max_completion_tokens': expected at least 1, got -1"},
      {chat_with(R"("max_tokens":1e10)"), "max_tokens",
       "field 'max_tokens': expected an integer of 32 bits, got 10000000000"},
      {chat_with(R"("n":17)"), "n", "field 'n': expected 1 to 16, got 17"},
      {chat_with(R"("n":0)"), "n", "field 'n': expected 1 to 16, got 0"},
      {chat_with(R"("stream":"yes")"), "stream",
       "field 'stream': expected true or false, got a string"},
      {chat_with(R"("stream_options":{"include_usage":true})"), "stream_options",
       "field 'stream_options': only allowed with \"stream\": true"},
      {chat_with(R"("stream":true,"stream_options":{"continuous_usage_stats":true})"),
       "stream_options.continuous_usage_stats",
       "field 'continuous_usage_stats': this server does not support it; leave it out or send "
       "false"},
      {chat_with(R"("stop":[1])"), "stop",
       "field 'stop': expected a string or a list of strings, got a list with an integer"},
      {chat_with(R"("stop":"")"), "stop", "field 'stop': expected non-empty strings"},
      {chat_with(R"("seed":"x")"), "seed", "field 'seed': expected an integer, got a string"},
      {chat_with(R"("stop_token_ids":[-1])"), "stop_token_ids",
       "field 'stop_token_ids': expected a list of token ids, got the id -1"},
      {chat_with(R"("chat_template_kwargs":[])"), "chat_template_kwargs",
       "field 'chat_template_kwargs': expected an object, got an array"},
  };
  for (const Refusal& refusal : refusals) {
    ChatRequest request;
    const auto error = parse_chat_request(refusal.body, request);
    ASSERT_TRUE(error) << refusal.body;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->message, refusal.message);
    EXPECT_EQ(error->param.value_or(""), refusal.param) << refusal.body;
  }
}

TEST(ChatRequestTest, UnsupportedFieldsAreRefusedByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"logprobs", "true"},
      {"top_logprobs", "3"},
      {"tools", R"([{"type":"function"}])"},
      {"tool_choice", R"("required")"},
      {"functions", R"([{"name":"f"}])"},
      {"response_format", R"({"type":"json_object"})"},
      {"presence_penalty", "0.5"},
      {"frequency_penalty", "-1"},
      {"repetition_penalty", "1.1"},
      {"min_p", "0.1"},
      {"logit_bias", R"({"5":1})"},
      {"best_of", "2"},
      {"guided_json", "{\"a\":1}"},
      {"prompt_logprobs", "1"},
      {"truncate_prompt_tokens", "5"},
      {"priority", "3"},
      {"chat_template", R"("{{ x }}")"},
      {"continue_final_message", "true"},
      {"guided_regex", R"("a+")"},
      {"guided_choice", R"(["a"])"},
      {"guided_grammar", R"("root ::= x")"},
      {"structured_outputs", R"({"json":{}})"},
      {"return_token_ids", "true"},
      {"detokenize", "false"},
  };
  for (const auto& [name, value] : fields) {
    ChatRequest request;
    const auto error =
        parse_chat_request(chat_with(fmt::format(R"("{}":{})", name, value)), request);
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->param, name);
    EXPECT_EQ(error->code, "unsupported_parameter") << name;
    EXPECT_EQ(error->status, 400);
  }
}

TEST(CompletionRequestTest, RefusalsNameTheField) {
  const std::string kinds =
      "field 'prompt': expected a string, a list of strings, a list of token ids or a list of "
      "lists "
      "of token ids, got ";
  const Refusal refusals[] = {
      {"{}", "prompt", "field 'prompt': missing"},
      {R"({"prompt":7})", "prompt", kinds + "an integer"},
      {R"({"prompt":[]})", "prompt", kinds + "an empty list"},
      {R"({"prompt":[true]})", "prompt", kinds + "a list with a boolean"},
      {R"({"prompt":["a",[1]]})", "prompt", kinds + "a list of several kinds"},
      {R"({"prompt":[1,"a"]})", "prompt",
       "field 'prompt': expected a list of token ids, got a list with a string"},
      {R"({"prompt":[1.5]})", "prompt",
       "field 'prompt': expected a list of token ids, got a list with a number"},
      {R"({"prompt":[2147483648]})", "prompt",
       "field 'prompt': expected a list of token ids, got the id 2147483648"},
      {completion_with(R"("suffix":"x")"), "suffix",
       "field 'suffix': this server does not support it; leave it out"},
      {completion_with(R"("logprobs":0)"), "logprobs",
       "field 'logprobs': this server does not support it; leave it out"},
      {completion_with(R"("best_of":2)"), "best_of",
       "field 'best_of': this server does not support it; leave it out or send 1"},
      {completion_with(R"("echo":1)"), "echo",
       "field 'echo': expected true or false, got an integer"},
  };
  for (const Refusal& refusal : refusals) {
    CompletionRequest request;
    const auto error = parse_completion_request(refusal.body, request);
    ASSERT_TRUE(error) << refusal.body;
    EXPECT_EQ(error->message, refusal.message);
    EXPECT_EQ(error->param.value_or(""), refusal.param) << refusal.body;
  }
}

TEST(ParseObject, BrokenJsonSaysWhere) {
  Json object;
  const auto error = parse_object(R"({"prompt": )", object);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "invalid_json");
  EXPECT_TRUE(
      error->message.starts_with("the body is not valid JSON: parse error at line 1, column"))
      << error->message;
}

// One random change of a body: bytes replaced, removed, doubled, or swapped for JSON's own words.
void mutate(std::string& body, Random& random) {
  static const std::string words[] = {
      "null", "-1",           "1e400", "[]", "{}", "\"", "\\u0000", "true", "9223372036854775808",
      "\xff", "\xed\xa0\x80", "[[",    ","};
  const size_t at = body.empty() ? 0 : random.below(body.size());
  switch (random.below(5)) {
    case 0:
      if (!body.empty()) body[at] = static_cast<char>(random.below(256));
      break;
    case 1:
      body.erase(at, random.below(8));
      break;
    case 2:
      body.insert(at, body.substr(at, random.below(16)));
      break;
    case 3:
      body.insert(at, words[random.below(std::size(words))]);
      break;
    default: {
      // A value for another: the likeliest way to reach the typed checks.
      const size_t colon = body.find(':', at);
      if (colon == std::string::npos) break;
      const size_t end = body.find_first_of(",}", colon);
      if (end == std::string::npos) break;
      body.replace(colon + 1, end - colon - 1, words[random.below(std::size(words))]);
    }
  }
}

// Whatever arrives is parsed or refused with a body that is valid JSON; nothing throws or crashes.
TEST(Fuzz, MutatedRequests) {
  const std::string seeds[] = {
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"n":2,)"
      R"("stop":["a"],"stream":true,"stream_options":{"include_usage":true},"seed":3,)"
      R"("logit_bias":{},"response_format":{"type":"text"},"chat_template_kwargs":{"a":[1]}})",
      R"({"model":"m","prompt":[[1,2],[3]],"max_tokens":5,"temperature":0.7,"top_p":0.5,"top_k":3,)"
      R"("stop_token_ids":[4],"ignore_eos":true,"min_tokens":2,"echo":false,"user":"u"})",
  };
  Random random(20240607);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string body = seeds[random.below(2)];
    const uint64_t changes = 1 + random.below(4);
    for (uint64_t change = 0; change < changes; ++change) mutate(body, random);
    ChatRequest chat;
    CompletionRequest completion;
    for (const auto& error :
         {parse_chat_request(body, chat), parse_completion_request(body, completion)}) {
      ++(error ? refused : accepted);
      if (!error) continue;
      EXPECT_EQ(error->status, 400);
      EXPECT_FALSE(error->message.empty());
      const auto parsed = parse_json(error_body(*error));
      ASSERT_TRUE(parsed.ok()) << body;
      EXPECT_TRUE((*parsed)["error"]["message"].is_string());
    }
    if (!completion.prompts.empty()) {
      EXPECT_LE(completion.options.n, kMaxChoicesPerPrompt);
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace expertplex
