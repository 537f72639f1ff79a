// The real worker pool under the thread sanitizer: both phases, several groups, skips, stop and
// abort with work in flight.
#include <cstdio>
#include <cstdlib>
#include <future>

#include "base/log.h"
#include "moe_rig.h"

namespace expertplex::cpu {
namespace {

using transport::MoePhase;

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::_Exit(1);
}

std::vector<std::future<MoeRun>> start_traffic(MoeRig& rig, int iterations, int most) {
  std::vector<std::future<MoeRun>> runs;
  for (const MoePhase phase : {MoePhase::kDecode, MoePhase::kPrefill}) {
    for (int member = 0; member < 2; ++member) {
      std::shared_ptr<transport::MoeClient> client = rig.connect(phase, member);
      const int rows = phase == MoePhase::kDecode ? most / 4 : most;
      runs.push_back(std::async(std::launch::async, [&rig, client, member, iterations, rows] {
        return run_moe(rig, *client, member, iterations, rows, 2e-2, 0.2);
      }));
    }
  }
  return runs;
}

void both_phases(MoeActivation activation, int clusters) {
  MoeDimensions d;
  d.activation = activation;
  d.hidden = activation == MoeActivation::kFp8 ? 128 : 32;
  d.intermediate = d.hidden;
  d.weights = DataType::kFp8E4m3;
  d.clusters = clusters;
  d.page_rows = 4;
  const RandomMoeModel model(d, 1);
  MoeRig rig(d, model);
  require(rig.start().empty(), "start");
  for (auto& run : start_traffic(rig, 10, 40)) {
    const std::string complaint = run.get().complaint;
    require(complaint.empty(), complaint);
  }
  const std::string stopped = rig.stop();
  require(stopped.empty(), stopped);
}

void abort_in_flight() {
  const MoeDimensions d;
  const RandomMoeModel model(d, 2);
  for (int i = 0; i < 3; ++i) {
    MoeRig rig(d, model);
    require(rig.start().empty(), "start");
    auto runs = start_traffic(rig, 100'000, 40);
    runs[0].wait_for(std::chrono::milliseconds(20 + 10 * i));
    for (const auto& server : rig.servers) server->abort();
    for (auto& run : runs) require(!run.get().complaint.empty(), "traffic outlived the servers");
    require(rig.stop().empty(), "stop after abort");
  }
}

}  // namespace
}  // namespace expertplex::cpu

int main() {
  using namespace expertplex;
  spdlog::set_level(spdlog::level::off);
  for (int clusters = 1; clusters <= 3; ++clusters) {
    cpu::both_phases(MoeActivation::kNative, clusters);
  }
  cpu::both_phases(MoeActivation::kFp8, 2);
  cpu::abort_in_flight();
  std::puts("ok");
  return 0;
}
