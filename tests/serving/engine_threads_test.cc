// The engine's threads on a fake backend: handoff through real windows, lockstep of decode servers,
// cancels from everywhere, failures, stalls, drain and destruction.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/random.h"
#include "serving/engine_fixture.h"
#include "serving/fake_backend.h"

namespace expertplex {
namespace {

struct Fixture : EngineFixture {
  explicit Fixture(EngineConfig config = {})
      : EngineFixture(EXPERTPLEX_SOURCE_DIR "/models/expertplex-mini"),
        backend(config.decode_servers) {
    if (config.kv_cache_bytes == 0) config.kv_cache_bytes = 8 << 20;
    if (config.max_model_len == 0) config.max_model_len = 512;
    weights = std::make_shared<ModelWeights>();
    create(config, backend);
  }
  ~Fixture() { engine.reset(); }

  FakeBackend backend;
};

EngineConfig layout(int prefill, int decode) {
  EngineConfig config;
  config.prefill_servers = prefill;
  config.decode_servers = decode;
  config.max_decode_batch = 8;
  config.max_prefill_tokens = 64;
  return config;
}

class Layouts : public testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Threads, Layouts,
                         testing::Values(std::pair(1, 1), std::pair(2, 1), std::pair(1, 2),
                                         std::pair(2, 2), std::pair(2, 3)));

TEST_P(Layouts, TokensAreRightWhateverTheBatching) {
  Fixture f(layout(GetParam().first, GetParam().second));
  Random random(7);
  std::vector<std::pair<std::vector<int32_t>, int>> asked;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 150; ++i) {
    asked.emplace_back(f.prompt(random, i % 10 == 0 ? 400 : 50),
                       static_cast<int>(random.between(1, 60)));
    sinks.push_back(f.submit(asked.back().first, asked.back().second));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->wait(), FinishReason::kLength) << sinks[i]->error().message;
    EXPECT_EQ(sinks[i]->tokens(), true_tokens(asked[i].first, asked[i].second, f.spec.vocab_size));
    EXPECT_EQ(sinks[i]->text(), f.text_of(sinks[i]->tokens()));
  }
  f.expect_nothing_held();
  const EngineStatistics s = f.engine->statistics();
  EXPECT_EQ(s.finished_length, 150u);
  EXPECT_EQ(s.ttft_seconds.count, 150u);
  EXPECT_EQ(s.itl_seconds.count, s.generation_tokens - 150);
  EXPECT_LE(f.backend.controls().largest_decode_batch.load(), 8);
  EXPECT_LE(f.backend.controls().largest_prefill_rows.load(), 64);
}

TEST_P(Layouts, CancelsFromEverywhereLeaveNothing) {
  Fixture f(layout(GetParam().first, GetParam().second));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&f, client] {
      Random random(client);
      for (int i = 0; i < 40; ++i) {
        const auto prompt = f.prompt(random, 200);
        RequestId id;
        const auto sink = f.submit(prompt, 40, &id);
        const int64_t how = random.between(0, 3);
        if (how == 0) f.engine->cancel(id);
        if (how == 1) {
          // From inside the sink, while the server's thread delivers.
          sink->at_tokens(static_cast<int>(random.between(1, 30)),
                          [&f, id] { f.engine->cancel(id); });
        }
        if (how == 2) {
          sink->wait_tokens(static_cast<size_t>(random.between(1, 20)));
          f.engine->cancel(id);
        }
        const FinishReason finish = sink->wait();
        EXPECT_TRUE(finish == FinishReason::kCancelled || finish == FinishReason::kLength);
        const auto tokens = sink->tokens();
        auto expected = true_tokens(prompt, 40, f.spec.vocab_size);
        expected.resize(tokens.size());
        EXPECT_EQ(tokens, expected);
      }
    });
  }
  for (auto& client : clients) client.join();
  f.expect_nothing_held();
}

TEST(EngineThreads, OneMemberWithWorkMakesTheOthersSkip) {
  Fixture f(layout(1, 3));
  const auto sink = f.submit({1, 2, 3}, 20);
  EXPECT_EQ(sink->wait(), FinishReason::kLength);
  f.expect_nothing_held();
  EXPECT_EQ(f.backend.controls().skips.load(), 2 * 19);
}

TEST(EngineThreads, AFailedIterationEndsItsRequestsOnly) {
  Fixture f(layout(1, 1));
  FakeControls& controls = f.backend.controls();
  controls.fail_prefill = 1;
  const auto first = f.submit({1, 2}, 5);
  EXPECT_EQ(first->wait(), FinishReason::kError);
  EXPECT_EQ(first->error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(first->error().message.find("injected"), std::string::npos);
  controls.fail_decode = 1;
  const auto second = f.submit({1, 2}, 5);
  EXPECT_EQ(second->wait(), FinishReason::kError);
  EXPECT_EQ(second->tokens().size(), 1u);
  const auto third = f.submit({1, 2}, 5);
  EXPECT_EQ(third->wait(), FinishReason::kLength);
  EXPECT_TRUE(f.engine->health().healthy);
  f.expect_nothing_held();
}

TEST(EngineThreads, FailingAgainAndAgainIsUnhealthyUntilItWorks) {
  Fixture f(layout(1, 1));
  f.backend.controls().fail_decode = 3;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f.submit({1, 2}, 5)->wait(), FinishReason::kError);
  EXPECT_FALSE(f.engine->health().healthy);
  EXPECT_NE(f.engine->health().detail.find("decode attention server 0 failed 3 times"),
            std::string::npos);
  EXPECT_EQ(f.submit({1, 2}, 5)->wait(), FinishReason::kLength);
  EXPECT_TRUE(f.engine->health().healthy);
}

TEST(EngineThreads, AStuckServerIsNamed) {
  EngineConfig config = layout(1, 1);
  config.wait_limit = 50 * kMillisecond;
  Fixture f(config);
  FakeControls& controls = f.backend.controls();
  controls.set(controls.stall_decode, true);
  const auto sink = f.submit({1, 2, 3}, 10);
  sink->wait_tokens(1);
  const Nanoseconds deadline = now_ns() + 20 * kSecond;
  while (f.engine->health().healthy && now_ns() < deadline) std::this_thread::yield();
  EXPECT_NE(f.engine->health().detail.find("decode attention server 0 has work"), std::string::npos)
      << f.engine->health().detail;
  controls.set(controls.stall_decode, false);
  EXPECT_EQ(sink->wait(), FinishReason::kLength);
  EXPECT_TRUE(f.engine->health().healthy) << f.engine->health().detail;
}

TEST(EngineThreads, DestroyedWhileRequestsRun) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    Fixture f(layout(2, 2));
    FakeControls& controls = f.backend.controls();
    for (int i = 0; i < 10; ++i) sinks.push_back(f.submit({1, 2, 3}, 400));
    sinks[0]->wait_tokens(1);
    controls.set(controls.stall_decode, true);
    controls.set(controls.stall_prefill, true);
    for (int i = 0; i < 10; ++i) sinks.push_back(f.submit({1, 2, 3}, 400));
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->finish(), FinishReason::kCancelled);
}

TEST(EngineThreads, DrainFinishesThenCancels) {
  Fixture f(layout(1, 1));
  FakeControls& controls = f.backend.controls();
  const auto finishes = f.submit({1, 2, 3}, 50);
  EXPECT_TRUE(f.engine->drain(20 * kSecond).ok());
  EXPECT_EQ(finishes->finish(), FinishReason::kLength);
  const auto refused = f.engine->submit({.prompt = {1}, .sampling = {}}, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);

  Fixture g(layout(1, 1));
  FakeControls& stuck = g.backend.controls();
  stuck.set(stuck.stall_prefill, true);
  const auto cancelled = g.submit({1, 2, 3}, 50);
  std::thread releases([&] {
    cancelled->wait();
    stuck.set(stuck.stall_prefill, false);
  });
  const auto drained = g.engine->drain(20 * kMillisecond);
  releases.join();
  EXPECT_FALSE(drained.ok());
  EXPECT_EQ(drained.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(cancelled->finish(), FinishReason::kCancelled);
  EXPECT_EQ(g.engine->statistics().kv_pages_used, 0);
  (void)controls;
}

TEST(EngineThreads, OverloadIsAnswered) {
  EngineConfig config = layout(1, 1);
  config.max_queued_requests = 3;
  config.max_decode_batch = 2;
  Fixture f(config);
  FakeControls& controls = f.backend.controls();
  controls.set(controls.stall_prefill, true);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(f.submit({1, 2, 3}, 5));  // 2 seats, 3 in the queue
  const auto refused = f.engine->submit({.prompt = {1}, .sampling = {}}, sinks[0]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(f.engine->statistics().rejected_queue_full, 1u);
  EXPECT_EQ(f.engine->statistics().waiting, 3);
  controls.set(controls.stall_prefill, false);
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait(), FinishReason::kLength);
  f.expect_nothing_held();
}

TEST(EngineThreads, CallsOfSeveralSequencesStartWholeOrNotAtAll) {
  EngineConfig config = layout(1, 1);
  config.max_queued_requests = 3;
  config.max_decode_batch = 2;
  Fixture f(config);
  FakeControls& controls = f.backend.controls();
  controls.set(controls.stall_prefill, true);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(f.submit({1, 2, 3}, 5));  // 2 seats, 2 in the queue
  const auto call_of = [&](int count) {
    std::vector<Submission> call;
    for (int i = 0; i < count; ++i) call.push_back({f.greedy({1, 2}, 5), sinks[0]});
    return call;
  };
  const auto never = f.engine->submit_all(call_of(4));
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(
      never.error().message.starts_with("this request makes 4 sequences, the queue holds 3"));
  const auto later = f.engine->submit_all(call_of(2));
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(f.engine->statistics().waiting, 2);
  controls.set(controls.stall_prefill, false);
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait(), FinishReason::kLength);
  std::vector<Submission> bad = call_of(2);
  bad[1].request.prompt = {-1};
  EXPECT_EQ(f.engine->submit_all(std::move(bad)).error().code, ErrorCode::kInvalidArgument);
  f.expect_nothing_held();
}

TEST(EngineThreads, BadRequestsAndConfigurationsAreRefused) {
  Fixture f(layout(1, 1));
  const auto code = [&](std::vector<int32_t> prompt, std::optional<int> max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    const auto result = f.engine->submit(std::move(request), std::make_shared<CollectingSink>());
    EXPECT_FALSE(result.ok());
    return result ? ErrorCode::kInternal : result.error().code;
  };
  EXPECT_EQ(code({}, 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, 5000}, 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({-1}, 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(std::vector<int32_t>(512, 1), std::nullopt), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(std::vector<int32_t>(500, 1), 13), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(f.engine->describe()["layout"]["decode_servers"], 1);

  const auto refusal = [&](EngineConfig config) {
    const auto made =
        Engine::create(config, f.spec, std::make_shared<ModelWeights>(), f.tokenizer, f.backend);
    EXPECT_FALSE(made.ok());
    return made ? std::string() : made.error().message;
  };
  EngineConfig small;
  small.kv_cache_bytes = 1 << 20;
  EXPECT_NE(refusal(small).find("256 pages x 6 layers x 16384 bytes = 24.0 MiB, got 1.0 MiB"),
            std::string::npos)
      << refusal(small);
  EngineConfig huge;
  huge.kv_cache_bytes = int64_t{1} << 50;
  EXPECT_NE(refusal(huge).find("does not fit"), std::string::npos) << refusal(huge);
  EngineConfig sharing;
  sharing.sharing.max_decode_clusters = 2;
  EXPECT_NE(refusal(sharing).find("--max-decode-clusters < --moe-clusters"), std::string::npos);
  EngineConfig none;
  none.decode_servers = 0;
  EXPECT_NE(refusal(none).find("--decode-servers: expected 1 to"), std::string::npos);
  EngineConfig longer;
  longer.max_model_len = f.spec.max_position_count + 1;
  EXPECT_EQ(refusal(longer),
            fmt::format("--max-model-len: expected at most {}, the model's context, got {}",
                        f.spec.max_position_count, longer.max_model_len));
}

}  // namespace
}  // namespace expertplex
