// Every interleaving of small configurations of the scheduling core: tile switching as CPU workers
// and as a kernel do it, two pipelines, parking. What is checked stands in sharing_model.h; the
// preemption bounds are checked as equalities.
//
// `exact` walks also tell states apart by who is ordered after which plain access, so that the race
// check covers every order; it is left out where that would be too many.
#include <gtest/gtest.h>

#include "apk/sharing_model.h"

namespace expertplex::apk {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFibersWork = false;  // sanitizers do not follow longjmp between stacks
#else
constexpr bool kFibersWork = true;
#endif

SharingConfig workers() {
  SharingConfig config;
  config.agent_is_role = true;
  config.policy.budget.decode_sms = 1;
  config.policy.budget.max_decode_sms = 1;
  return config;
}

SharingConfig kernel(uint32_t clusters, uint32_t members) {
  SharingConfig config = workers();
  config.agent_is_role = false;
  config.clusters = clusters;
  config.members = members;
  return config;
}

SharingConfig two_pipelines(uint32_t clusters, uint32_t members, PausePolicy pause) {
  SharingConfig config = kernel(clusters, members);
  config.policy.mode = SwitchMode::kTwoPipelines;
  config.policy.pause = pause;
  config.decode_pipeline = PipelineRole::kResident;
  return config;
}

SharingConfig parking(uint32_t clusters, uint32_t members, uint32_t k_blocks) {
  SharingConfig config = kernel(clusters, members);
  config.policy.mode = SwitchMode::kParking;
  config.k_blocks = k_blocks;
  return config;
}

struct Seen {
  PreemptionBound most, bound;
  uint64_t borrowed = 0, parked = 0;
};

void print_result(const char* how, const std::string& name, const Exploration& result) {
  printf("[ %s ] %-38s %s\n", how, name.c_str(), result.summary().c_str());
  fflush(stdout);
}

// Walks it all; must be clean.
Seen walk(const std::string& name, const SharingConfig& config, bool exact) {
  SharingModel<ModelMemory> model(config);
  const Exploration result = Explorer(model).explore(10'000'000, exact);
  print_result(exact ? "explored, exact order" : "explored             ", name, result);
  EXPECT_TRUE(result.ok) << name << ": " << result.fault << " after " << result.schedule.size()
                         << " steps";
  return {model.most(), model.bound(), model.borrowed_seen(), model.parked_seen()};
}

class Interleaving : public testing::Test {
 protected:
  void SetUp() override {
    if (!kFibersWork) GTEST_SKIP() << "the explorer's fibers do not run under sanitizers";
  }
};

TEST_F(Interleaving, WorkersSwitchAtTileBoundaries) {
  const Seen seen = walk("workers", workers(), true);
  EXPECT_EQ(seen.most.claims, seen.bound.claims);
  EXPECT_EQ(seen.most.tiles, seen.bound.tiles);
  EXPECT_GT(seen.borrowed, 0u);
  SharingConfig columns = workers();
  columns.decode_columns = 2;
  walk("workers, two column tiles", columns, false);
  SharingConfig cursor = workers();
  cursor.down_scan_window = 2;
  walk("workers, moving cursor", cursor, false);
  SharingConfig reduce = workers();
  reduce.prefill_rows = 1;
  reduce.prefill_tokens = 1;
  walk("workers, reduction", reduce, true);
}

// The walks above do not interleave accesses that commute with everything (is_local). This one
// trusts no such argument.
TEST_F(Interleaving, WorkersWithEveryAccessInterleaved) {
  SharingConfig config = workers();
  config.prefill_rows = 1;
  config.interleave_all = true;
  walk("workers, every access interleaved", config, false);
}

TEST_F(Interleaving, WorkersReuseASlot) {
  SharingConfig config = workers();
  config.prefill_rows = 1;
  config.decode_epochs = 2;
  walk("workers, two operations in a slot", config, false);
}

// With more tiles left than there are clusters, a claimer does not look before it claims.
TEST_F(Interleaving, ClaimsWithoutALook) {
  SharingConfig config = kernel(2, 1);
  config.prefill_rows = 0;
  config.decode_rows = 4;
  config.decode_has_down = false;
  walk("unseen claims, 2 clusters of 1", config, false);
  config.decode_rows = 3;
  config.clusters = 1;
  config.decode_epochs = 2;
  walk("unseen claims, two operations", config, false);
}

TEST_F(Interleaving, WorkersUnderOtherPolicies) {
  SharingConfig patient = workers();
  patient.policy.lend_while_waiting = false;
  EXPECT_EQ(walk("workers, no lending while waiting", patient, true).borrowed, 0u);
  SharingConfig stubborn = workers();
  stubborn.policy.preemption_enabled = false;
  EXPECT_GT(walk("workers, no preemption", stubborn, false).most.claims, 1u);
}

TEST_F(Interleaving, ClustersSwitchAtTileBoundaries) {
  SharingConfig two = kernel(2, 1);
  two.prefill_rows = 1;
  walk("2 clusters of 1", two, false);
  walk("1 cluster of 2", kernel(1, 2), true);
}

TEST_F(Interleaving, AClaimerAheadOfItsMembersReachesTheBound) {
  SharingConfig config = kernel(1, 2);
  config.prefill_rows = 1;
  config.own_claimer = true;
  const Seen seen = walk("1 cluster of 2, own claimer", config, true);
  EXPECT_EQ(seen.most.claims, seen.bound.claims);
  EXPECT_EQ(seen.most.tiles, seen.bound.tiles);
}

TEST_F(Interleaving, TwoPipelinesOverlap) {
  SharingConfig config = two_pipelines(1, 2, PausePolicy::kAll);
  config.prefill_rows = 1;
  walk("two pipelines, 1 cluster of 2", config, false);
  // Of two clusters: both main pipelines and one resident, and the other way round.
  SharingConfig main = two_pipelines(2, 1, PausePolicy::kAll);
  main.prefill_rows = 1;
  main.resident_pipelines = 1;
  walk("two pipelines, 2 main, 1 resident", main, false);
  SharingConfig resident = two_pipelines(2, 1, PausePolicy::kAll);
  resident.prefill_rows = 1;
  resident.main_pipelines = 1;
  walk("two pipelines, 1 main, 2 resident", resident, false);
}

TEST_F(Interleaving, ParkingGivesWayWithinTheBound) {
  SharingConfig two = parking(2, 1, 2);
  two.prefill_rows = 1;
  const Seen alone = walk("parking, 2 clusters of 1", two, false);
  EXPECT_EQ(alone.most.k_blocks, alone.bound.k_blocks);
  EXPECT_GT(alone.parked, 0u);
  SharingConfig pair = parking(1, 2, 5);  // longer than the bound
  pair.prefill_rows = 1;
  const Seen fused = walk("parking, 1 cluster of 2", pair, true);
  EXPECT_EQ(fused.most.k_blocks, fused.bound.k_blocks);
  pair.own_claimer = true;
  const Seen ahead = walk("parking, 1 cluster of 2, own claimer", pair, false);
  EXPECT_EQ(ahead.most.k_blocks, ahead.bound.k_blocks);
}

// Every cluster's first tile comes with the announcement; the others are claimed.
TEST_F(Interleaving, AnnouncedOperations) {
  SharingConfig config = two_pipelines(2, 1, PausePolicy::kAll);
  config.announced = true;
  config.prefill_rows = 0;
  walk("announced, fewer tiles than clusters", config, true);
  config.decode_columns = 2;
  walk("announced, a tile each", config, false);
  config.decode_columns = 1;
  config.decode_epochs = 2;
  walk("announced, two operations", config, false);
  SharingConfig more = two_pipelines(1, 1, PausePolicy::kAll);
  more.announced = true;
  more.prefill_rows = 1;
  more.decode_columns = 2;
  walk("announced, beside prefill", more, false);
}

// The same for the main pipelines, to which the agent announces.
TEST_F(Interleaving, OperationsThatTheAgentAnnounces) {
  SharingConfig config = workers();
  config.agent_is_role = false;
  config.announced = true;
  config.prefill_rows = 0;
  walk("agent announces, fewer tiles than clusters", config, false);
  config.decode_columns = 2;
  walk("agent announces, a tile each", config, false);
  config.decode_columns = 1;
  config.decode_epochs = 2;
  walk("agent announces, two operations", config, false);
}

// Two clusters of two members: too many to walk, so sampled.
TEST_F(Interleaving, TwoClustersOfTwoSampled) {
  SharingConfig claimers = parking(2, 2, 3);
  claimers.own_claimer = true;
  const std::pair<const char*, SharingConfig> cases[] = {
      {"2 clusters of 2", kernel(2, 2)},
      {"parking, 2 clusters of 2, own claimer", claimers},
      {"two pipelines, 2 clusters of 1", two_pipelines(2, 1, PausePolicy::kAll)}};
  for (const auto& [name, config] : cases) {
    SharingModel<ModelMemory> model(config);
    const Exploration result = Explorer(model).sample(5000, 100'000, 2026);
    print_result("sampled              ", name, result);
    EXPECT_TRUE(result.ok) << name << ": " << result.fault;
  }
}

}  // namespace
}  // namespace expertplex::apk
