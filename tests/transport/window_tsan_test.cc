// Under the thread sanitizer: payloads published by words, and no wake-up lost between a parked
// waiter and a signaller that skips the system call.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "base/random.h"
#include "fabrics.h"
#include "fake_moe_server.h"
#include "moe_traffic.h"

namespace expertplex::transport {
namespace {

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

// Two threads hand a payload back and forth. `park_at_once` waits through ticket, look, park alone,
// so that nearly every round sleeps or just does not; a lost wake-up is a wait of 20 s.
void ping_pong(Fabric& fabric, const std::string& name, int rounds, bool park_at_once) {
  const auto owner = *fabric.create_window(name, 4096, 2);
  const auto turn = [&](int self, const std::shared_ptr<Window>& window) {
    Random random(self);
    const size_t mine = self == 0 ? 0 : 8, theirs = self == 0 ? 8 : 0;
    for (uint32_t round = 1; round <= static_cast<uint32_t>(rounds); ++round) {
      if (self == 0) {
        window->put(64, &round, sizeof(round));
        window->signal(mine, round, 1);
      }
      if (park_at_once) {
        const Nanoseconds start = now_ns();
        while (true) {
          const uint32_t ticket = window->bell_ticket(self);
          if (window->load(theirs) == round) break;
          window->park(self, ticket, 30 * kSecond);
          require(now_ns() - start < 20 * kSecond, name + ": lost wake-up");
        }
      } else {
        const auto seen = window->wait(theirs, self, [&](uint64_t w) { return w == round; },
                                       {.waiter = "ping", .word = "pong", .limit = 20 * kSecond});
        require(seen.ok(), name + ": lost wake-up");
      }
      uint32_t payload = 0;
      window->get(&payload, 64, sizeof(payload));
      require(payload == round, name + ": payload");
      if (self == 1) window->signal(mine, round, 0);
      for (uint64_t spin = random.below(200); spin > 0; --spin)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  };
  std::thread other([&] { turn(1, *fabric.open_window(name, kSecond)); });
  turn(0, owner);
  other.join();
}

// Many waiters of one bell and many signallers; everyone must get through.
void crowd(Fabric& fabric, int rounds) {
  const auto window = *fabric.create_window("crowd", 4096, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int r = 1; r <= rounds; ++r) {
        window->signal(8 * t, r, 0);
        for (int other = 0; other < 3; ++other) {
          const auto seen =
              window->wait(8 * other, 0, [&](uint64_t w) { return w >= static_cast<uint64_t>(r); },
                           {.waiter = "crowd", .word = "round", .limit = 20 * kSecond});
          require(seen.ok(), "crowd: lost wake-up");
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void traffic() {
  const MoeBufferConfig config = small_config();
  InProcessFabric fabric;
  std::vector<std::unique_ptr<FakeMoeServer>> servers;
  for (int s = 0; s < 2; ++s) {
    servers.push_back(std::make_unique<FakeMoeServer>(fabric, config, s, window_names(config)[s]));
    servers.back()->start();
  }
  std::vector<std::future<std::string>> results;
  for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
    for (int member = 0; member < 2; ++member) {
      auto connected = MoeClient::connect(fabric, client_config(config, phase, member));
      require(connected.ok(), "connect");
      std::shared_ptr<MoeClient> client = std::move(*connected);
      results.push_back(std::async(
          std::launch::async, [=] { return run_traffic(*client, config, phase, member, 40); }));
    }
  }
  for (auto& result : results) {
    const std::string complaint = result.get();
    require(complaint.empty(), complaint);
  }
}

}  // namespace
}  // namespace expertplex::transport

int main() {
  using namespace expertplex::transport;
  const auto shared = SharedMemory::make();
  InProcessFabric in_process;
  for (const bool park_at_once : {true, false}) {
    const std::string name = park_at_once ? "park" : "wait";
    ping_pong(in_process, name, 15'000, park_at_once);
    ping_pong(*shared, name, 15'000, park_at_once);
  }
  crowd(in_process, 3'000);
  traffic();
  std::puts("ok");
  return 0;
}
