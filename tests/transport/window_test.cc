// One suite over both fabrics: memory, words, waits with limits, aborts, names.
#include "transport/window.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"
#include "fabrics.h"

namespace expertplex::transport {
namespace {

template <typename T>
class WindowTest : public ::testing::Test {
 protected:
  std::shared_ptr<Window> make(const std::string& name, size_t bytes = 1 << 16, int bells = 2) {
    auto window = fabric_->create_window(name, bytes, bells);
    EXPECT_TRUE(window) << window.error().message;
    return *window;
  }
  std::shared_ptr<Window> open(const std::string& name) {
    auto window = fabric_->open_window(name, kSecond);
    EXPECT_TRUE(window) << window.error().message;
    return *window;
  }
  std::unique_ptr<Fabric> fabric_ = T::make();
};

using Fabrics = ::testing::Types<InProcess, SharedMemory>;
TYPED_TEST_SUITE(WindowTest, Fabrics);

bool is_nonzero(uint64_t bits) { return bits != 0; }

TYPED_TEST(WindowTest, MemoryIsZeroedAlignedAndSharedWithPeers) {
  const auto owner = this->make("memory", 100'000);
  EXPECT_EQ(owner->bytes(), 100'000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(owner->local_data()) % 4096, 0u);
  for (size_t i = 0; i < owner->bytes(); ++i) ASSERT_EQ(owner->local_data()[i], std::byte{0});
  const auto peer = this->open("memory");
  EXPECT_EQ(peer->bytes(), owner->bytes());
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<char> sent(random.below(5000)), received(sent.size());
    for (char& c : sent) c = static_cast<char>(random.next());
    const size_t offset = random.below(owner->bytes() - sent.size() + 1);
    peer->put(offset, sent.data(), sent.size());
    ASSERT_EQ(std::memcmp(owner->local_data() + offset, sent.data(), sent.size()), 0);
    owner->get(received.data(), offset, received.size());
    ASSERT_EQ(sent, received);
  }
}

TYPED_TEST(WindowTest, OffsetsAreChecked) {
  const auto window = this->make("bounds", 4096);
  char byte = 0;
  EXPECT_DEATH(window->put(4096, &byte, 1), "window 'bounds': bytes \\[4096");
  EXPECT_DEATH(window->get(&byte, SIZE_MAX, 2), "window 'bounds'");
  EXPECT_DEATH(window->load(4), "word at byte 4");
  EXPECT_DEATH(window->signal(4096, 1, 0), "window 'bounds'");
  EXPECT_DEATH(window->ring(2), "bell 2 of 2");
}

TYPED_TEST(WindowTest, ReserveStartsANewEpochAtZero) {
  const auto window = this->make("reserve");
  EXPECT_EQ(window->reserve(8, 5, 3), 0u);
  EXPECT_EQ(window->reserve(8, 5, 4), 3u);
  EXPECT_EQ(unpack(window->load(8)), (WordValue{5, 7}));
  EXPECT_EQ(window->reserve(8, 6, 2), 0u);
  EXPECT_EQ(window->reserve(8, 5, 1), kStaleReservation);
  EXPECT_EQ(unpack(window->load(8)), (WordValue{6, 2}));
  // Epochs wrap.
  EXPECT_EQ(window->reserve(16, UINT32_MAX, 2), 0u);
  EXPECT_EQ(window->reserve(16, 1, 9), 0u);
  EXPECT_EQ(unpack(window->load(16)), (WordValue{1, 9}));
}

TYPED_TEST(WindowTest, ConcurrentReservationsDoNotOverlap) {
  const auto owner = this->make("atomic");
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::vector<uint32_t>> got(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, peer = this->open("atomic")] {
      for (int i = 0; i < kRounds; ++i) got[t].push_back(peer->reserve(0, 9, 1 + t));
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<char> taken(kRounds * (1 + 2 + 3 + 4), 0);
  for (int t = 0; t < kThreads; ++t) {
    for (const uint32_t base : got[t]) {
      for (int i = 0; i <= t; ++i) ASSERT_EQ(taken.at(base + i)++, 0);
    }
  }
}

TYPED_TEST(WindowTest, WaitReturnsWhatIsThereAndWhatComes) {
  const auto owner = this->make("wait");
  owner->signal(0, pack({1, 2}), 0);
  const WaitSpec spec{.waiter = "tester", .word = "the word", .limit = 5 * kSecond};
  EXPECT_EQ(*owner->wait(0, 0, is_nonzero, spec), pack({1, 2}));
  std::thread signaller([peer = this->open("wait")] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the waiter parks
    const uint32_t payload = 77;
    peer->put(100, &payload, sizeof(payload));
    peer->signal(8, pack({3, 4}), 0);
  });
  EXPECT_EQ(*owner->wait(8, 0, is_nonzero, spec), pack({3, 4}));
  uint32_t payload = 0;
  owner->get(&payload, 100, sizeof(payload));
  EXPECT_EQ(payload, 77u);
  signaller.join();
}

TYPED_TEST(WindowTest, AWaitThatReachesItsLimitSaysItsState) {
  const auto window = this->make("limit");
  window->signal(64, pack({3, 1}), 0);
  const WaitSpec spec{.waiter = "decode attention server 0",
                      .word = "the done word of MoE server 1",
                      .expected = {4, 3},
                      .limit = 30 * kMillisecond};
  const Nanoseconds start = now_ns();
  const auto result = window->wait(
      64, 0, [](uint64_t) { return false; }, spec);
  const Nanoseconds waited = now_ns() - start;
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_GE(waited, 30 * kMillisecond);
  EXPECT_LT(waited, 5 * kSecond);
  const std::string& message = result.error().message;
  for (const char* part :
       {"decode attention server 0", "gave up waiting after 0.03", "the done word of MoE server 1",
        "window 'limit'", "byte 64", "expected {epoch 4, value 3}", "seen {epoch 3, value 1}"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TYPED_TEST(WindowTest, AbortEndsParkedWaitsForGood) {
  const auto owner = this->make("abort");
  const WaitSpec spec{.waiter = "worker 3", .word = "ready", .limit = 60 * kSecond};
  std::thread aborter([peer = this->open("abort")] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    peer->raise_abort();
  });
  const auto result = owner->wait(0, 1, is_nonzero, spec);
  aborter.join();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_NE(result.error().message.find("worker 3 stopped waiting (abort)"), std::string::npos);
  EXPECT_TRUE(owner->aborted());
  EXPECT_EQ(owner->wait(0, 1, is_nonzero, spec).error().code, ErrorCode::kCancelled);
  owner->signal(0, 1, 0);  // a word that is ready counts also then
  EXPECT_TRUE(owner->wait(0, 1, is_nonzero, spec));
}

TYPED_TEST(WindowTest, AWaitersOwnAbortFlag) {
  const auto window = this->make("own-abort");
  std::atomic<uint32_t> flag{0};
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flag = 1;
    window->ring(0);
  });
  const auto result = window->wait(
      0, 0, is_nonzero, {.waiter = "w", .word = "x", .limit = 60 * kSecond, .abort = &flag});
  aborter.join();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(window->aborted());
}

TYPED_TEST(WindowTest, ParkReturnsAtOnceWhenTheBellHasRung) {
  const auto window = this->make("park");
  const uint32_t ticket = window->bell_ticket(0);
  window->ring(1);
  Nanoseconds start = now_ns();
  window->park(0, ticket, 20 * kMillisecond);  // the other bell does not wake
  EXPECT_GE(now_ns() - start, 15 * kMillisecond);
  window->ring(0);
  start = now_ns();
  window->park(0, ticket, 60 * kSecond);
  EXPECT_LT(now_ns() - start, 10 * kSecond);
}

TYPED_TEST(WindowTest, NamesBelongToTheOwner) {
  auto owner = this->make("name");
  EXPECT_EQ(this->fabric_->create_window("name", 64, 1).error().code, ErrorCode::kInvalidArgument);
  auto peer = this->open("name");
  owner->signal(0, 42, 0);
  owner.reset();
  EXPECT_EQ(peer->load(0), 42u);  // the memory stays
  EXPECT_EQ(this->fabric_->open_window("name", kMillisecond).error().code,
            ErrorCode::kDeadlineExceeded);
  const auto second = this->make("name");
  EXPECT_EQ(second->load(0), 0u);
}

TYPED_TEST(WindowTest, OpenWaitsForTheOwner) {
  std::shared_ptr<Window> made;
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    made = this->make("late");
  });
  const auto peer = this->fabric_->open_window("late", 30 * kSecond);
  owner.join();
  EXPECT_TRUE(peer);
  const auto missing = this->fabric_->open_window("never", 20 * kMillisecond);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(missing.error().message.find("window 'never'"), std::string::npos);
}

TYPED_TEST(WindowTest, BadRequestsAreRefused) {
  for (const char* name : {"", "a/b", "sp ace"}) {
    EXPECT_EQ(this->fabric_->create_window(name, 64, 1).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(this->fabric_->create_window("x", 0, 1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(this->fabric_->create_window("x", 64, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(this->fabric_->create_window("x", 64, 99).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace expertplex::transport
