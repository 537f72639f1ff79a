// Broken twins of the scheduling core: each has one mistake that is easy to make, and the explorer
// must find it. A twin that goes unfound means that the explorer has lost its sight.
#include <gtest/gtest.h>

#include "apk/sharing_model.h"

namespace expertplex::apk {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFibersWork = false;
#else
constexpr bool kFibersWork = true;
#endif

class BrokenTwin : public testing::Test {
 protected:
  void SetUp() override {
    if (!kFibersWork) GTEST_SKIP() << "the explorer's fibers do not run under sanitizers";
  }
};

SharingConfig workers() {
  SharingConfig config;
  config.agent_is_role = true;
  config.prefill_rows = 1;
  config.policy.budget.decode_sms = 1;
  config.policy.budget.max_decode_sms = 1;
  return config;
}

SharingConfig pair_of_members() {
  SharingConfig config = workers();
  config.agent_is_role = false;
  config.clusters = 1;
  config.members = 2;
  return config;
}

// Explores until the first fault, which must be one of `expected` (separated by '|').
template <typename Mem>
void expect_caught(const char* name, const SharingConfig& config, const std::string& expected,
                   bool exact = true) {
  SharingModel<Mem> model(config);
  const Exploration result = Explorer(model).explore(10'000'000, exact);
  printf("[ caught ] %-30s %s after %llu states, %.3f s cpu, %zu steps\n", name,
         result.fault.c_str(), static_cast<unsigned long long>(result.states), result.seconds,
         result.schedule.size());
  ASSERT_FALSE(result.ok) << name << " went unfound";
  bool known = false;
  for (size_t at = 0; at <= expected.size();) {
    const size_t end = std::min(expected.find('|', at), expected.size());
    known = known || result.fault.find(expected.substr(at, end - at)) != std::string::npos;
    at = end + 1;
  }
  EXPECT_TRUE(known) << "'" << result.fault << "' instead of '" << expected << "'";
}

// The hang of every public post-mortem: each member reads the shared word and decides for itself.
TEST_F(BrokenTwin, MembersThatDecideForThemselves) {
  SharingConfig config = pair_of_members();
  config.twin = Twin::kMembersDecide;
  expect_caught<ModelMemory>("members decide", config, "on different tiles|no progress");
}

TEST_F(BrokenTwin, AnAnnouncedTileWithoutAnAcquire) {
  SharingConfig config = workers();
  config.agent_is_role = false;
  config.prefill_rows = 0;
  config.policy.mode = SwitchMode::kTwoPipelines;
  config.decode_pipeline = PipelineRole::kResident;
  config.announced = true;
  config.twin = Twin::kNoAcquire;
  expect_caught<ModelMemory>("announced tile, no acquire", config, "the senders' rows");
}

TEST_F(BrokenTwin, AClaimOfALoadAndAStore) {
  expect_caught<FaultyMemory<Fault::kSplitClaim>>("claim by load and store", workers(),
                                                  "claimed twice");
}

TEST_F(BrokenTwin, ACommitOfALoadAndAStore) {
  SharingConfig config = workers();
  config.prefill_rows = 0;
  config.decode_columns = 2;
  config.interleave_all = true;
  expect_caught<FaultyMemory<Fault::kSplitCommit>>("commit by load and store", config,
                                                   "no progress", false);
}

TEST_F(BrokenTwin, TheAgentsRoleTakenByALoadAndAStore) {
  expect_caught<FaultyMemory<Fault::kSplitRole>>("role by load and store", workers(),
                                                 "two deciding agents|the agent's private data");
}

TEST_F(BrokenTwin, ALostRelease) {
  expect_caught<FaultyMemory<Fault::kLostRelease>>("lost release", workers(),
                                                   "without being ordered");
}

TEST_F(BrokenTwin, ALostReleaseInTheCommitAlone) {
  SharingConfig config = workers();
  config.decode_columns = 2;
  expect_caught<FaultyMemory<Fault::kLostCommitRelease>>("lost release of a commit", config,
                                                         "without being ordered");
}

TEST_F(BrokenTwin, ALostAcquire) {
  expect_caught<FaultyMemory<Fault::kLostAcquire>>("lost acquire", workers(),
                                                   "without being ordered");
}

TEST_F(BrokenTwin, ADependencyOfOneTileInPlaceOfTheRowBlock) {
  SharingConfig config = workers();
  config.decode_columns = 2;
  config.twin = Twin::kNoDependency;
  expect_caught<ModelMemory>("dependency check lost", config,
                             "before the tiles that it depends on|without being ordered");
}

TEST_F(BrokenTwin, AnEpochUsedAgain) {
  SharingConfig config = workers();
  config.decode_epochs = 2;
  config.prefill_rows = 0;
  config.down_scan_window = 1;
  config.twin = Twin::kSameEpochAgain;
  expect_caught<ModelMemory>("epoch used again", config, "no progress", false);
}

TEST_F(BrokenTwin, ALookAtTheOperationAfterItsSlotWasGivenAway) {
  SharingConfig config = workers();
  config.decode_epochs = 2;
  config.twin = Twin::kLateLook;
  expect_caught<ModelMemory>("late look at the operation", config, "without being ordered");
}

TEST_F(BrokenTwin, AHandoffThatDoesNotWaitForItsReaders) {
  SharingConfig config = pair_of_members();
  config.own_claimer = true;
  config.twin = Twin::kNoCredit;
  expect_caught<ModelMemory>("handoff without credit", config, "handoff message|no progress");
}

}  // namespace
}  // namespace expertplex::apk
