// MoeClient against a plain MoE server, over both fabrics.
#include "transport/moe_client.h"

#include <gtest/gtest.h>

#include <future>

#include "fabrics.h"
#include "fake_moe_server.h"
#include "moe_traffic.h"

namespace expertplex::transport {
namespace {

template <typename T>
class MoeClientTest : public ::testing::Test {
 protected:
  void serve() {
    for (int s = 0; s < config_.moe_server_count; ++s) {
      servers_.push_back(
          std::make_unique<FakeMoeServer>(*fabric_, config_, s, window_names(config_)[s]));
      servers_.back()->start();
    }
  }
  std::unique_ptr<MoeClient> connect(MoePhase phase, int member, int microbatch = 0,
                                     Nanoseconds limit = 60 * kSecond) {
    auto config = client_config(config_, phase, member, microbatch);
    config.wait_limit = limit;
    auto client = MoeClient::connect(*fabric_, config);
    EXPECT_TRUE(client) << client.error().message;
    return std::move(*client);
  }
  void expect_no_faults() {
    for (auto& server : servers_) EXPECT_EQ(server->faults(), 0);
  }

  MoeBufferConfig config_ = small_config();
  std::unique_ptr<Fabric> fabric_ = T::make();
  std::vector<std::unique_ptr<FakeMoeServer>> servers_;
};

using Fabrics = ::testing::Types<InProcess, SharedMemory>;
TYPED_TEST_SUITE(MoeClientTest, Fabrics);

TYPED_TEST(MoeClientTest, AllGroupsAndMicrobatchesAtOnce) {
  this->serve();
  std::vector<std::future<std::string>> results;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
      for (int member = 0; member < 2; ++member) {
        std::shared_ptr<MoeClient> client = this->connect(phase, member, microbatch);
        results.push_back(std::async(std::launch::async, [=, this] {
          const uint64_t seed = microbatch * 100 + member * 10 + static_cast<int>(phase);
          return run_traffic(*client, this->config_, phase, seed, 60);
        }));
      }
    }
  }
  for (auto& result : results) EXPECT_EQ(result.get(), "");
  this->expect_no_faults();
}

TYPED_TEST(MoeClientTest, AParticipantWithoutTokensTakesPart) {
  this->serve();
  auto leader = this->connect(MoePhase::kDecode, 0), idle = this->connect(MoePhase::kDecode, 1);
  auto other = std::async(std::launch::async, [&]() -> std::string {
    for (int i = 0; i < 5; ++i) {
      if (auto r = idle->begin_iteration(); !r) return r.error().message;
      if (auto r = idle->skip_iteration(); !r) return r.error().message;
    }
    return "";
  });
  EXPECT_EQ(run_traffic(*leader, this->config_, MoePhase::kDecode, 3, 5, 0.0), "");
  EXPECT_EQ(other.get(), "");
  this->expect_no_faults();
}

TYPED_TEST(MoeClientTest, AParticipantThatNeverComesIsNamedAndCanBeLeftOut) {
  this->serve();
  auto leader = this->connect(MoePhase::kDecode, 0, 0, 50 * kMillisecond);
  ASSERT_TRUE(leader->begin_iteration());
  Random random(5);
  const TrafficRows rows = draw_rows(random, this->config_, 4);
  ASSERT_TRUE(leader->dispatch(0, rows.bytes(), rows.routing(3)));
  const auto combined = leader->combine(0);
  ASSERT_FALSE(combined);
  EXPECT_EQ(combined.error().code, ErrorCode::kDeadlineExceeded);
  const std::string& message = combined.error().message;
  for (const char* part :
       {"decode attention server 0", "the done word of MoE server 0", "expected {epoch 1, value 1}",
        "seen {epoch 0, value 0}", "participant 1 has not published layer 0",
        "expected epoch 1, seen {epoch 0, value 0}"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  // Its rows from the broken iteration stay behind; counters start anew with the next epoch.
  ASSERT_TRUE(leader->set_participants(1));
  EXPECT_EQ(run_traffic(*leader, this->config_, MoePhase::kDecode, 6, 10), "");
  // Whoever was left out is told so.
  auto late = this->connect(MoePhase::kDecode, 1);
  ASSERT_TRUE(leader->begin_iteration());
  const auto begun = late->begin_iteration();
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(begun.error().message.find("mask 0x1"), std::string::npos) << begun.error().message;
  this->expect_no_faults();
}

TYPED_TEST(MoeClientTest, ALateReservationIsRefused) {
  this->serve();
  auto leader = this->connect(MoePhase::kDecode, 0), late = this->connect(MoePhase::kDecode, 1);
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(late->begin_iteration());
  ASSERT_TRUE(leader->set_participants(1));
  Random random(5);
  TrafficRows rows = draw_rows(random, this->config_, 4);
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(leader->dispatch(0, rows.bytes(), rows.routing(3)));
  const auto sent = late->dispatch(0, rows.bytes(), rows.routing(3));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(leader->combine(0));
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(check_token(*leader, this->config_, MoePhase::kDecode, 0, rows, t), "");
  }
}

TYPED_TEST(MoeClientTest, ASilentMoeServerIsNamed) {
  FakeMoeServer first(*this->fabric_, this->config_, 0, "moe0");
  FakeMoeServer silent(*this->fabric_, this->config_, 1, "moe1");
  first.start();
  auto sender = this->connect(MoePhase::kPrefill, 1, 0, 50 * kMillisecond);
  ASSERT_TRUE(sender->begin_iteration());
  Random random(5);
  const TrafficRows rows = draw_rows(random, this->config_, 4);
  ASSERT_TRUE(sender->dispatch(0, rows.bytes(), rows.routing(3)));
  const auto combined = sender->combine(0);
  ASSERT_FALSE(combined);
  const std::string& message = combined.error().message;
  for (const char* part :
       {"prefill attention server 1", "the done word of MoE server 1", "window 'moe1'",
        "all participants have published layer 0: MoE server 1 does not answer"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TYPED_TEST(MoeClientTest, AbortEndsACombine) {
  FakeMoeServer silent0(*this->fabric_, this->config_, 0, "moe0");
  FakeMoeServer silent1(*this->fabric_, this->config_, 1, "moe1");
  auto leader = this->connect(MoePhase::kDecode, 0), follower = this->connect(MoePhase::kDecode, 1);
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(leader->dispatch(0, {}, {0, 3, {}, {}}));
  auto combine = std::async(std::launch::async, [&] { return leader->combine(0); });
  EXPECT_EQ(combine.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  leader->abort();
  EXPECT_EQ(combine.get().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(leader->begin_iteration().error().code, ErrorCode::kCancelled);

  ASSERT_TRUE(follower->begin_iteration());  // the leader's
  auto begin = std::async(std::launch::async, [&] { return follower->begin_iteration(); });
  EXPECT_EQ(begin.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  silent0.window().raise_abort();
  EXPECT_EQ(begin.get().error().code, ErrorCode::kCancelled);
}

TYPED_TEST(MoeClientTest, AFollowerMayConnectAfterTheIterationBegan) {
  this->serve();
  auto leader = this->connect(MoePhase::kDecode, 0);
  ASSERT_TRUE(leader->begin_iteration());
  ASSERT_TRUE(leader->skip_iteration());
  {
    auto follower = this->connect(MoePhase::kDecode, 1);
    ASSERT_TRUE(follower->begin_iteration());  // ends here, before it has sent anything
  }
  // Its successor does not take part in what the forerunner had begun: it waits for the next one.
  auto restarted = this->connect(MoePhase::kDecode, 1, 0, 30 * kMillisecond);
  EXPECT_EQ(restarted->begin_iteration().error().code, ErrorCode::kDeadlineExceeded);
}

TYPED_TEST(MoeClientTest, ARestartedClientGoesOnAfterItsForerunner) {
  this->serve();
  for (int i = 0; i < 3; ++i) {
    auto sender = this->connect(MoePhase::kPrefill, 0);
    EXPECT_EQ(run_traffic(*sender, this->config_, MoePhase::kPrefill, i, 4, 0.0), "");
  }
  this->expect_no_faults();
}

TYPED_TEST(MoeClientTest, BadInputIsRefusedBeforeAnythingIsSent) {
  this->serve();
  auto sender = this->connect(MoePhase::kPrefill, 0);
  const std::vector<uint32_t> words(100 * 11);
  const auto complaint = [&](int tokens, std::vector<int32_t> ids, size_t row_words) {
    EXPECT_TRUE(sender->begin_iteration());
    const std::vector<float> weights(ids.size(), 1.0f);
    const auto sent = sender->dispatch(0, std::as_bytes(std::span(words).first(row_words)),
                                       {tokens, 3, ids, weights});
    EXPECT_FALSE(sent);
    if (sent) return std::string();
    EXPECT_EQ(sent.error().code, ErrorCode::kInvalidArgument);
    return sent.error().message;
  };
  EXPECT_NE(complaint(1, {0, 1, 7}, 11).find("within [0, 7), got 7"), std::string::npos);
  EXPECT_NE(complaint(1, {0, 2, 2}, 11).find("ascend"), std::string::npos);
  EXPECT_NE(complaint(1, {0, 1}, 11).find("2 ids"), std::string::npos);
  EXPECT_NE(complaint(1, {0, 1, 2}, 10).find("40 row bytes"), std::string::npos);
  EXPECT_NE(complaint(41, std::vector<int32_t>(123, 0), 451).find("got 41"), std::string::npos);
  // The client is whole after it.
  EXPECT_EQ(run_traffic(*sender, this->config_, MoePhase::kPrefill, 1, 3), "");
}

TYPED_TEST(MoeClientTest, ConnectSaysWhatDoesNotFit) {
  this->serve();
  auto config = client_config(this->config_, MoePhase::kDecode, 2);
  EXPECT_NE(
      MoeClient::connect(*this->fabric_, config).error().message.find("expected 0 to 1, got 2"),
      std::string::npos);
  config.member = 0;
  config.buffers.max_decode_rows += 100;
  EXPECT_NE(MoeClient::connect(*this->fabric_, config)
                .error()
                .message.find("buffer configurations differ"),
            std::string::npos);
  config.buffers = this->config_;
  config.moe_windows[1] = "nowhere";
  config.wait_limit = 10 * kMillisecond;
  EXPECT_NE(MoeClient::connect(*this->fabric_, config).error().message.find("MoE server 1: window"),
            std::string::npos);
}

}  // namespace
}  // namespace expertplex::transport
