// The engine's policy under random traffic and faults, from one seed; see simulated_world.h. Every
// seed ends with a liveness phase: faults stop, and everything must finish and come back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "serving/simulated_world.h"

namespace expertplex {
namespace {

TEST(Simulation, EverySeedKeepsItsPromises) {
  // EXPERTPLEX_SEED=n replays one seed.
  const char* only = std::getenv("EXPERTPLEX_SEED");
  const uint64_t first = only ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only ? first : 1500;
  int requests = 0;
  uint64_t tokens = 0;
  std::map<std::string, int> coverage;
  for (uint64_t seed = first; seed <= last; ++seed) {
    World world(seed, {});
    try {
      world.run();
    } catch (const Violation& violation) {
      FAIL() << violation.what() << " (replay with EXPERTPLEX_SEED=" << seed << ")";
    }
    requests += world.submitted();
    tokens += world.tokens_seen();
    for (const auto& [name, count] : world.coverage()) coverage[name] += count;
  }
  std::printf("%d requests, %llu tokens over %llu seeds\n", requests,
              static_cast<unsigned long long>(tokens),
              static_cast<unsigned long long>(last - first + 1));
  for (const auto& [name, count] : coverage) std::printf("  %-32s %d\n", name.c_str(), count);
  if (only) return;
  for (const char* name :
       {"stall", "skip", "decode failed before it began", "began after the others gave up",
        "decode wait ran out", "drain", "prefill failed", "decode failed", "handoff without tokens",
        "handoff expired", "cancelled while prefilling", "cancelled while handing off",
        "cancelled while decoding", error_code_name(ErrorCode::kResourceExhausted),
        error_code_name(ErrorCode::kUnavailable), error_code_name(ErrorCode::kInvalidArgument)}) {
    EXPECT_GT(coverage[name], 0) << name << " never happened";
  }
}

// The checkers must catch drivers that break the rules.
int violations(WorldOptions options) {
  int caught = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    try {
      World(seed, options).run();
    } catch (const Violation&) {
      ++caught;
    }
  }
  return caught;
}

TEST(Simulation, CanaryALatePutIsCaught) { EXPECT_GE(violations({.put_after_publish = true}), 9); }

TEST(Simulation, CanaryATokenThatDependsOnTheBatchIsCaught) {
  EXPECT_GE(violations({.wrong_token_on_batch = true}), 5);
}

TEST(Simulation, TheSameSeedGivesTheSameRun) {
  World a(77, {}), b(77, {});
  a.run();
  b.run();
  EXPECT_EQ(a.tokens_seen(), b.tokens_seen());
  EXPECT_EQ(a.coverage(), b.coverage());
}

}  // namespace
}  // namespace expertplex
