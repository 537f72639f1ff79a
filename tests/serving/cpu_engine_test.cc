// The engine on the CPU backend: real experts, real handoff. The same greedy tokens whatever the
// batching, the layout and who else is cancelled; golden continuations; nothing held at the end.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "cpu/cpu_backend.h"
#include "model/safetensors.h"
#include "serving/altered_backend.h"
#include "serving/engine_fixture.h"

namespace expertplex {
namespace {

const std::string kMini = EXPERTPLEX_SOURCE_DIR "/models/expertplex-mini";
const std::string kGolden = EXPERTPLEX_SOURCE_DIR "/tests/golden/";

EngineConfig layout(int prefill, int decode) {
  EngineConfig config;
  config.prefill_servers = prefill;
  config.decode_servers = decode;
  config.max_model_len = 512;
  config.max_prefill_tokens = 128;
  config.max_decode_batch = 16;
  config.kv_cache_bytes = 32 << 20;
  return config;
}

struct CpuFixture : EngineFixture {
  explicit CpuFixture(EngineConfig config = layout(1, 1), const std::string& directory = kMini,
                      std::unique_ptr<Backend> with = cpu::make_cpu_backend())
      : EngineFixture(directory), backend(std::move(with)) {
    // Loaded once per directory for all tests.
    static std::map<std::string, std::shared_ptr<const ModelWeights>> loaded;
    auto& shared = loaded[directory];
    if (!shared) shared = *load_model_weights(directory, spec);
    weights = shared;
    config.max_model_len = std::min(config.max_model_len, spec.max_position_count);
    create(config, *backend);
  }
  ~CpuFixture() { engine.reset(); }

  std::vector<int32_t> encode(const std::string& text) const {
    return *tokenizer->encode(text, false);
  }

  std::unique_ptr<Backend> backend;
};

using Tokens = std::vector<int32_t>;

// Prompts of many lengths, some longer than one prefill iteration.
std::vector<Tokens> prompts_of(const CpuFixture& f, int count) {
  Random random(3);
  std::vector<Tokens> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(f.prompt(random, i % 5 == 0 ? 300 : 40));
  return prompts;
}

constexpr int kPrompts = 20;
constexpr int kTokens = 24;

// Each prompt alone on one prefill and one decode server.
const std::vector<Tokens>& reference() {
  static const std::vector<Tokens> tokens = [] {
    CpuFixture f;
    std::vector<Tokens> out;
    for (const Tokens& prompt : prompts_of(f, kPrompts)) {
      const auto sink = f.submit(prompt, kTokens);
      EXPECT_EQ(sink->wait(), FinishReason::kLength) << sink->error().message;
      out.push_back(sink->tokens());
    }
    f.expect_nothing_held();
    return out;
  }();
  return tokens;
}

void expect_reference(CpuFixture& f) {
  const std::vector<Tokens>& expected = reference();
  const std::vector<Tokens> prompts = prompts_of(f, kPrompts);
  Random random(11);
  std::vector<std::shared_ptr<CollectingSink>> sinks, others;
  for (const Tokens& prompt : prompts) {
    sinks.push_back(f.submit(prompt, kTokens));
    // Company that is cancelled on the way.
    RequestId id;
    others.push_back(f.submit(f.prompt(random, 60), 60, &id));
    others.back()->at_tokens(static_cast<int>(random.between(1, 20)),
                             [&f, id] { f.engine->cancel(id); });
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->wait(), FinishReason::kLength) << sinks[i]->error().message;
    EXPECT_EQ(sinks[i]->tokens(), expected[i]) << "prompt " << i;
  }
  for (const auto& other : others) EXPECT_EQ(other->wait(), FinishReason::kCancelled);
  f.expect_nothing_held();
}

class CpuLayouts : public testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(CpuEngine, CpuLayouts,
                         testing::Values(std::pair(1, 1), std::pair(2, 1), std::pair(1, 2),
                                         std::pair(2, 2)));

TEST_P(CpuLayouts, SameTokensWhateverTheBatching) {
  CpuFixture f(layout(GetParam().first, GetParam().second));
  expect_reference(f);
}

TEST(CpuEngine, SameTokensWithoutPreemption) {
  EngineConfig config = layout(1, 1);
  config.sharing.preemption = false;
  CpuFixture f(config);
  expect_reference(f);
}

TEST(CpuEngine, SameTokensOnOneMoeServerAndMoreClusters) {
  EngineConfig config = layout(1, 1);
  config.moe_servers = 1;
  config.moe_clusters = 3;
  config.sharing.max_decode_clusters = 2;
  CpuFixture f(config);
  expect_reference(f);
}

class GoldenModels : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(CpuEngine, GoldenModels,
                         testing::Values("minimax_m2", "qwen3_moe", "minimax_m2_fp8",
                                         "qwen3_moe_fp8", "minimax_m2_bf16",
                                         "qwen3_moe_bf16_tied"));

TEST_P(GoldenModels, GreedyContinuationsAreTheGoldenOnes) {
  const std::string directory = kGolden + GetParam();
  // The golden files keep keys and values in F32; BF16 rows move logits by more than the margins of
  // their greedy steps.
  auto backend = std::make_unique<AlteredBackend>();
  backend->f32_cache = true;
  CpuFixture f(layout(1, 1), directory, std::move(backend));
  const auto file = *SafetensorsFile::open(directory + "/golden.safetensors");
  for (int i = 0; i < 3; ++i) {
    const auto ids = *to_ints(*file->find(fmt::format("prompt.{}.token_ids", i)));
    const auto golden = *to_ints(*file->find(fmt::format("prompt.{}.greedy_ids", i)));
    const auto sink = f.submit(Tokens(ids.begin(), ids.end()), static_cast<int>(golden.size()));
    EXPECT_EQ(sink->wait(), FinishReason::kLength) << sink->error().message;
    EXPECT_EQ(sink->tokens(), Tokens(golden.begin(), golden.end())) << "prompt " << i;
  }
  f.expect_nothing_held();
}

TEST(CpuEngine, AHundredRequestsWithRandomCancelsLeaveNothing) {
  CpuFixture f(layout(1, 1));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 10; ++client) {
    clients.emplace_back([&f, client] {
      Random random(client);
      std::vector<std::pair<RequestId, std::shared_ptr<CollectingSink>>> mine;
      for (int i = 0; i < 10; ++i) {
        RequestId id;
        auto sink = f.submit(f.prompt(random, 100), static_cast<int>(random.between(1, 40)), &id);
        mine.emplace_back(id, std::move(sink));
      }
      for (auto& [id, sink] : mine) {
        if (random.chance(0.5)) {
          sink->wait_tokens(static_cast<size_t>(random.between(0, 20)));
          f.engine->cancel(id);
        }
      }
      for (auto& [id, sink] : mine) sink->wait();
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_TRUE(f.engine->health().healthy) << f.engine->health().detail;
  f.expect_nothing_held();
  const EngineStatistics s = f.engine->statistics();
  EXPECT_EQ(s.finished_length + s.finished_cancelled, 100u);
  EXPECT_EQ(s.finished_error, 0u);
  ASSERT_EQ(s.moe.size(), 2u);
  EXPECT_GT(s.moe[0].decode_operations, 0u);
  EXPECT_GT(s.moe[0].prefill_operations, 0u);
}

TEST(CpuEngine, StopStringsCutTheText) {
  CpuFixture f;
  const Tokens prompt = f.encode("The history of");
  const auto whole = f.submit(prompt, 32);
  EXPECT_EQ(whole->wait(), FinishReason::kLength);
  EXPECT_EQ(whole->text(), f.text_of(whole->tokens()));
  const std::string text = whole->text();
  ASSERT_GT(text.size(), 20u);
  const std::string stop = text.substr(12, 5);
  const size_t at = text.find(stop);
  for (const bool include : {false, true}) {
    GenerationRequest request = f.greedy(prompt, 32);
    request.sampling.stop = {stop, "never in the text"};
    request.sampling.include_stop_str_in_output = include;
    const auto cut = f.submit(std::move(request));
    EXPECT_EQ(cut->wait(), FinishReason::kStop);
    EXPECT_EQ(cut->text(), text.substr(0, include ? at + stop.size() : at));
    EXPECT_LT(cut->tokens().size(), whole->tokens().size());
  }
  GenerationRequest request = f.greedy(prompt, 32);
  request.sampling.stop_token_ids = {whole->tokens()[6]};
  const auto stopped = f.submit(std::move(request));
  EXPECT_EQ(stopped->wait(), FinishReason::kStop);
  EXPECT_LE(stopped->tokens().size(), 7u);
  f.expect_nothing_held();
}

TEST(CpuEngine, SampledTokensFollowFromTheSeedWhateverTheBatch) {
  CpuFixture f;
  const Tokens prompt = f.encode("Once upon a time");
  const auto sampled = [&] {
    GenerationRequest request = f.greedy(prompt, 20);
    request.sampling.temperature = 0.9f;
    request.sampling.top_p = 0.9f;
    request.sampling.top_k = 50;
    request.sampling.seed = 1234;
    return f.submit(std::move(request));
  };
  const auto alone = sampled();
  alone->wait();
  Random random(1);
  std::vector<std::shared_ptr<CollectingSink>> company;
  for (int i = 0; i < 8; ++i) company.push_back(f.submit(f.prompt(random, 50), 25));
  const auto together = sampled();
  for (const auto& sink : company) sink->wait();
  together->wait();
  EXPECT_EQ(alone->tokens(), together->tokens());
  f.expect_nothing_held();
}

TEST(CpuEngine, LengthsAreChecked) {
  CpuFixture f;
  const auto refused =
      f.engine->submit(f.greedy(Tokens(600, 1), 5), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("maximum context length is 512"), std::string::npos);
  // Up to the last position.
  const auto full = f.submit(Tokens(500, 7), 12);
  EXPECT_EQ(full->wait(), FinishReason::kLength) << full->error().message;
  const auto one = f.submit(Tokens(511, 7), 1);
  EXPECT_EQ(one->wait(), FinishReason::kLength) << one->error().message;
  f.expect_nothing_held();
}

TEST(CpuEngine, AMemberThatFailsEndsTheIterationAndTheGroupRecovers) {
  EngineConfig config = layout(1, 2);
  config.wait_limit = 2 * kSecond;
  auto owned = std::make_unique<AlteredBackend>();
  AlteredBackend& backend = *owned;
  CpuFixture f(config, kMini, std::move(owned));
  const auto before = f.submit(Tokens{5, 6, 7}, 20);
  EXPECT_EQ(before->wait(), FinishReason::kLength);
  // Both members have a request; member 1 does not come to one iteration, so member 0 waits in
  // vain.
  backend.failures = 1;
  const auto a = f.submit(Tokens{5, 6, 7}, 300);
  const auto b = f.submit(Tokens{8, 9}, 300);
  a->wait_tokens(2);
  b->wait_tokens(2);
  backend.failing_decode = 1;
  EXPECT_EQ(b->wait(), FinishReason::kError);
  EXPECT_EQ(a->wait(), FinishReason::kError);
  const auto codes = {a->error().code, b->error().code};
  EXPECT_NE(std::find(codes.begin(), codes.end(), ErrorCode::kInternal), codes.end());
  EXPECT_NE(std::find(codes.begin(), codes.end(), ErrorCode::kDeadlineExceeded), codes.end());
  const auto after = f.submit(Tokens{5, 6, 7}, 20);
  EXPECT_EQ(after->wait(), FinishReason::kLength) << after->error().message;
  EXPECT_EQ(after->tokens(), before->tokens());
  EXPECT_TRUE(f.engine->health().healthy) << f.engine->health().detail;
  f.expect_nothing_held();
}

TEST(CpuEngine, ADeadMoeServerIsAnErrorNotAHang) {
  EngineConfig config = layout(1, 1);
  config.wait_limit = 500 * kMillisecond;
  auto owned = std::make_unique<AlteredBackend>();
  AlteredBackend& backend = *owned;
  CpuFixture f(config, kMini, std::move(owned));
  const auto running = f.submit(Tokens{5, 6, 7}, 400);
  running->wait_tokens(2);
  backend.moe_servers[1]->abort();
  EXPECT_EQ(running->wait(), FinishReason::kError);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f.submit(Tokens{1}, 5)->wait(), FinishReason::kError);
  EXPECT_FALSE(f.engine->health().healthy);
  EXPECT_TRUE(f.engine->drain(20 * kSecond).ok());
  EXPECT_EQ(f.engine->statistics().kv_pages_used, 0);
}

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

int thread_count() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

TEST(CpuEngine, AnIdleEngineSleepsAndHasFewThreads) {
  const int threads_before = thread_count();
  {
    CpuFixture f;
    EXPECT_EQ(f.submit(Tokens{1, 2, 3}, 20)->wait(), FinishReason::kLength);
    // One prefill, one decode, two MoE servers with two clusters each.
    EXPECT_LE(thread_count() - threads_before, 6);
    const double before = cpu_seconds();
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    never.wait_for(lock, std::chrono::seconds(2));
    EXPECT_LT(cpu_seconds() - before, 0.1) << "busy while idle";
  }
  EXPECT_EQ(thread_count(), threads_before) << "a thread survives the engine";
}

TEST(CpuEngine, DestroyedWhileRequestsRun) {
  std::promise<void> running;
  std::once_flag once;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    CpuFixture f(layout(2, 2));
    Random random(5);
    for (int i = 0; i < 12; ++i) {
      sinks.push_back(f.submit(f.prompt(random, 200), 300));
      // Whichever is first: on a busy machine the decode servers may finish one request before the
      // prefill servers, whose priority is lower, come to another.
      sinks.back()->at_tokens(2, [&] { std::call_once(once, [&] { running.set_value(); }); });
    }
    ASSERT_EQ(running.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->finish(), FinishReason::kCancelled)
        << sink->tokens().size() << " tokens; " << sink->error().message;
  }
}

}  // namespace
}  // namespace expertplex
