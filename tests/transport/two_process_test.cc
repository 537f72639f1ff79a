// Attention and MoE server in two processes over shared memory, and what happens when one is
// killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "fabrics.h"
#include "fake_moe_server.h"
#include "moe_traffic.h"

namespace expertplex::transport {
namespace {

// Runs `body` in a forked process; it ends with _exit, so that nothing of the test's runs twice.
class Process {
 public:
  explicit Process(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  ~Process() {
    if (pid_ > 0) kill_now();
  }
  void kill_now() {
    kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

int serve_forever(const std::string& fabric_name, const MoeBufferConfig& config, int server) {
  auto fabric = SharedMemoryFabric::create(fabric_name);
  FakeMoeServer moe(**fabric, config, server, window_names(config)[server]);
  moe.run();
  return 0;
}

int count_names(const std::string& fabric_name) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    count += entry.path().filename().string().rfind("expertplex." + fabric_name + ".", 0) == 0;
  }
  return count;
}

TEST(TwoProcesses, RowsOfBothPhasesArriveIntact) {
  const MoeBufferConfig config = small_config();
  const std::string name = SharedMemoryFabric::unique_name();
  Process moe0([&] { return serve_forever(name, config, 0); });
  Process moe1([&] { return serve_forever(name, config, 1); });
  // The second decode participant is a process of its own as well.
  Process decode1([&] {
    auto fabric = SharedMemoryFabric::create(name);
    auto client = MoeClient::connect(**fabric, client_config(config, MoePhase::kDecode, 1));
    return client && run_traffic(**client, config, MoePhase::kDecode, 11, 40).empty() ? 0 : 1;
  });
  Process prefill([&] {
    auto fabric = SharedMemoryFabric::create(name);
    auto client = MoeClient::connect(**fabric, client_config(config, MoePhase::kPrefill, 1));
    return client && run_traffic(**client, config, MoePhase::kPrefill, 12, 40).empty() ? 0 : 1;
  });
  auto fabric = SharedMemoryFabric::create(name);
  auto client = MoeClient::connect(**fabric, client_config(config, MoePhase::kDecode, 0));
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(run_traffic(**client, config, MoePhase::kDecode, 13, 40), "");
  EXPECT_EQ(decode1.wait(), 0);
  EXPECT_EQ(prefill.wait(), 0);
}

TEST(TwoProcesses, AKilledServerIsAnErrorAndLeavesNothingBehind) {
  const MoeBufferConfig config = small_config();
  const std::string name = SharedMemoryFabric::unique_name();
  Process moe0([&] { return serve_forever(name, config, 0); });
  Process moe1([&] { return serve_forever(name, config, 1); });
  auto fabric = SharedMemoryFabric::create(name);
  auto settings = client_config(config, MoePhase::kPrefill, 0);
  settings.wait_limit = kSecond;
  auto client = MoeClient::connect(**fabric, settings);
  ASSERT_TRUE(client) << client.error().message;
  ASSERT_EQ(run_traffic(**client, config, MoePhase::kPrefill, 1, 5), "");
  moe1.kill_now();
  const std::string complaint = run_traffic(**client, config, MoePhase::kPrefill, 2, 5, 0.0);
  EXPECT_NE(complaint.find("MoE server 1 does not answer"), std::string::npos) << complaint;

  // The name of the dead is not found, is taken over by a new owner, and swept by the next fabric.
  EXPECT_EQ(count_names(name), 2);
  EXPECT_FALSE((*fabric)->open_window("moe1", 10 * kMillisecond));
  EXPECT_TRUE((*fabric)->open_window("moe0", 10 * kMillisecond));
  {
    auto again = (*fabric)->create_window("moe1", 4096, 1);
    EXPECT_TRUE(again) << again.error().message;
  }
  EXPECT_EQ(count_names(name), 1);
  moe0.kill_now();
  EXPECT_EQ(count_names(name), 1);
  ASSERT_TRUE(SharedMemoryFabric::create("sweeper"));
  EXPECT_EQ(count_names(name), 0);
}

TEST(TwoProcesses, AKilledParticipantIsNamedAndTheGroupGoesOn) {
  const MoeBufferConfig config = small_config();
  const std::string name = SharedMemoryFabric::unique_name();
  Process moe0([&] { return serve_forever(name, config, 0); });
  Process moe1([&] { return serve_forever(name, config, 1); });
  Process decode1([&] {
    auto fabric = SharedMemoryFabric::create(name);
    auto client = MoeClient::connect(**fabric, client_config(config, MoePhase::kDecode, 1));
    if (!client || !run_traffic(**client, config, MoePhase::kDecode, 1, 3).empty()) return 1;
    raise(SIGKILL);
    return 2;
  });
  auto fabric = SharedMemoryFabric::create(name);
  auto settings = client_config(config, MoePhase::kDecode, 0);
  settings.wait_limit = 2 * kSecond;
  auto client = MoeClient::connect(**fabric, settings);
  ASSERT_TRUE(client) << client.error().message;
  const std::string complaint = run_traffic(**client, config, MoePhase::kDecode, 2, 5);
  EXPECT_NE(complaint.find("participant 1 has not published layer 0"), std::string::npos)
      << complaint;
  ASSERT_TRUE((*client)->set_participants(1));
  EXPECT_EQ(run_traffic(**client, config, MoePhase::kDecode, 3, 10), "");
}

}  // namespace
}  // namespace expertplex::transport
