// Page pool, handoff slots, admission and the batchers, each against a model of a few lines.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "backend/kv_cache.h"
#include "base/random.h"
#include "serving/admission.h"
#include "serving/decode_batcher.h"
#include "serving/decode_group.h"
#include "serving/kv_pages.h"
#include "serving/prefill_batcher.h"
#include "serving/statistics.h"

namespace expertplex {
namespace {

class NoText : public TextStream {
 public:
  std::string push(int32_t) override { return {}; }
  std::string finish() override { return {}; }
};

std::unique_ptr<Request> make_request(uint64_t id, int prompt_tokens, int max_tokens) {
  GenerationRequest generation;
  generation.prompt.assign(static_cast<size_t>(prompt_tokens), 1);
  OutputProcessor output(generation.sampling, max_tokens, {}, std::make_unique<NoText>());
  auto request = std::make_unique<Request>(RequestId{id}, std::move(generation), std::move(output));
  request->max_tokens = max_tokens;
  return request;
}

TEST(PagePool, ConservedUnderRandomUse) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const int total = static_cast<int>(random.between(1, 40));
    PagePool pool(total);
    std::vector<std::vector<uint32_t>> held;
    std::set<uint32_t> model;
    for (int step = 0; step < 200; ++step) {
      if (random.chance(0.55)) {
        const int count = static_cast<int>(random.between(1, 12));
        auto pages = pool.allocate(count);
        ASSERT_EQ(pages.has_value(), count <= total - static_cast<int>(model.size())) << seed;
        if (!pages) continue;
        ASSERT_EQ(static_cast<int>(pages->size()), count);
        for (uint32_t page : *pages) {
          ASSERT_LT(page, static_cast<uint32_t>(total));
          ASSERT_TRUE(model.insert(page).second) << "page owned twice, seed " << seed;
        }
        held.push_back(std::move(*pages));
      } else if (!held.empty()) {
        const size_t victim = random.below(held.size());
        pool.release(held[victim]);
        for (uint32_t page : held[victim]) model.erase(page);
        held.erase(held.begin() + static_cast<ptrdiff_t>(victim));
      }
      ASSERT_EQ(pool.used(), static_cast<int>(model.size())) << seed;
      ASSERT_EQ(pool.used() + pool.free(), total) << seed;
    }
  }
}

TEST(PagePoolDeathTest, DoubleReleaseIsCaught) {
  PagePool pool(4);
  const auto pages = *pool.allocate(2);
  pool.release(pages);
  EXPECT_DEATH(pool.release(pages), "is not in use");
}

TEST(HandoffSlots, EveryUseHasANewEpoch) {
  HandoffSlots slots(2);
  const HandoffSlot a = *slots.open();
  const HandoffSlot b = *slots.open();
  EXPECT_NE(a.index, b.index);
  EXPECT_FALSE(slots.open().has_value());
  slots.close(a);
  const HandoffSlot again = *slots.open();
  EXPECT_EQ(again.index, a.index);
  EXPECT_EQ(again.epoch, a.epoch + 1);
  EXPECT_EQ(slots.used(), 2);
}

TEST(PrefillBatcher, EveryRowOnceInOrderWithinTheBudget) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const int budget = kKvPageTokens * static_cast<int>(random.between(1, 8));
    PrefillBatcher batcher(budget);
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<int> done(20);
    uint64_t finished = 0;
    for (uint64_t i = 0; i < 20; ++i) {
      requests.push_back(make_request(i, static_cast<int>(random.between(1, 200)), 1));
    }
    size_t next = 0;
    for (int iteration = 0; finished < 20; ++iteration) {
      ASSERT_LT(iteration, 2000);
      while (next < requests.size() && random.chance(0.6)) batcher.push(requests[next++].get());
      int rows = 0;
      for (const PrefillPiece& piece : batcher.form()) {
        const uint64_t id = piece.request->id.value;
        ASSERT_EQ(piece.first, done[id]) << seed;
        ASSERT_GT(piece.count, 0);
        // First come, first served: all those before it are done by the end of this iteration.
        for (uint64_t before = 0; before < id; ++before) {
          ASSERT_EQ(done[before], requests[before]->prompt_size()) << seed;
        }
        ASSERT_EQ(piece.first % kKvPageTokens, 0) << "a page is handed off twice";
        rows += piece.count;
        done[id] += piece.count;
        batcher.advance(piece);
        if (piece.last()) {
          batcher.remove(piece.request);
          ++finished;
        }
      }
      ASSERT_LE(rows, budget) << seed;
    }
    EXPECT_EQ(batcher.pending_tokens(), 0);
    EXPECT_TRUE(batcher.empty());
  }
}

TEST(PrefillBatcher, PacksShortPromptsBehindTheEndOfALongOne) {
  PrefillBatcher batcher(64);
  auto long_one = make_request(1, 100, 1), a = make_request(2, 10, 1), b = make_request(3, 40, 1);
  for (Request* request : {long_one.get(), a.get(), b.get()}) batcher.push(request);
  auto pieces = batcher.form();
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].count, 64);
  batcher.advance(pieces[0]);
  pieces = batcher.form();
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].count, 36);
  EXPECT_EQ(pieces[1].count, 10);
  EXPECT_EQ(pieces[2].count, 16);  // 18 rows were left: one whole page
}

TEST(Admission, ReservesAllOrNothingFirstComeFirstServed) {
  Admission admission({.prefill_servers = 1,
                       .decode_servers = 2,
                       .prefill_pages = 10,
                       .decode_pages = 8,
                       .decode_seats = 2,
                       .handoff_slots = 2,
                       .max_queued = 10});
  const std::vector<int64_t> load = {0};
  auto small = make_request(1, 16, 17), large = make_request(2, 64, 64),
       late = make_request(3, 1, 1);
  auto medium = make_request(4, 64, 33);
  EXPECT_TRUE(admission.can_ever_fit(64, 65));
  EXPECT_FALSE(admission.can_ever_fit(64, 66));
  for (Request* request : {small.get(), medium.get(), large.get(), late.get()})
    admission.push(request);
  EXPECT_EQ(admission.admit(load), small.get());
  EXPECT_EQ(small->decode_pages.size(), 2u);  // 16 + 17 - 1 tokens
  EXPECT_EQ(admission.admit(load), medium.get());
  EXPECT_NE(small->decode_server, medium->decode_server);
  // The large one fits nowhere now; the late one, which would fit, does not overtake it.
  EXPECT_EQ(admission.admit(load), nullptr);
  admission.release_decode_half(*medium);
  EXPECT_EQ(admission.admit(load), large.get());
  EXPECT_EQ(large->decode_server, medium->decode_server);
  EXPECT_EQ(admission.admit(load), late.get());
  EXPECT_EQ(admission.slots_used(), 4);
}

TEST(DecodeBatcher, JoinsInOrderUpToTheLimit) {
  DecodeBatcher batcher(2);
  auto a = make_request(1, 1, 1), b = make_request(2, 1, 1), c = make_request(3, 1, 1);
  for (Request* request : {a.get(), b.get(), c.get()}) batcher.join(request);
  EXPECT_EQ(batcher.form(), (std::vector<Request*>{a.get(), b.get()}));
  batcher.leave(a.get());
  EXPECT_EQ(batcher.form(), (std::vector<Request*>{b.get(), c.get()}));
}

TEST(DecodeGroup, EveryMemberTakesPartOnce) {
  DecodeGroup group(3);
  EXPECT_FALSE(group.may_join(0));
  for (uint64_t iteration = 1; iteration < 5; ++iteration) {
    group.open();
    EXPECT_EQ(group.iteration(), iteration);
    for (int member : {2, 0, 1}) {
      EXPECT_TRUE(group.may_join(member));
      group.join(member);
      EXPECT_FALSE(group.expects(member));
      if (member == 2) group.leave(2, false);
      EXPECT_TRUE(group.is_open());
    }
    group.leave(1, false);
    EXPECT_FALSE(group.expects(2));
    EXPECT_TRUE(group.is_open());
    group.leave(0, false);
    EXPECT_FALSE(group.is_open());
  }
}

TEST(DecodeGroup, AfterAFailureTheOthersJoinWhenTheLeaderHasBegun) {
  DecodeGroup group(2);
  group.open();
  group.join(1);
  group.leave(1, true);
  group.join(0);
  EXPECT_FALSE(group.begin());
  EXPECT_FALSE(group.leave(0, true));
  group.open();
  EXPECT_FALSE(group.may_join(1));
  group.join(0);
  EXPECT_FALSE(group.may_join(1));
  EXPECT_TRUE(group.begin());
  EXPECT_FALSE(group.begin());  // tells once
  EXPECT_TRUE(group.may_join(1));
  group.join(1);
  group.leave(1, false);
  group.leave(0, false);
  group.open();
  EXPECT_TRUE(group.may_join(1));
}

TEST(DecodeGroup, ALeaderThatCannotBeginDismissesTheOthers) {
  DecodeGroup group(2);
  group.open();
  group.join(0);
  group.join(1);
  group.leave(0, true);
  group.leave(1, true);
  for (int times = 1; times <= 2; ++times) {
    group.open();
    group.join(0);
    EXPECT_TRUE(group.leave(0, true));
    EXPECT_FALSE(group.is_open());
    EXPECT_EQ(group.dismissals(), times);
  }
  group.open();
  group.join(0);
  EXPECT_FALSE(group.leave(0, false));  // it has begun, so it was not in vain
  EXPECT_TRUE(group.may_join(1));
  EXPECT_EQ(group.dismissals(), 0);
}

TEST(Statistics, BucketsAreUpperBoundsIncluded) {
  EXPECT_EQ(length_bounds(200), (std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200}));
  EngineStatistics statistics = make_statistics(100);
  Histogram& ttft = statistics.ttft_seconds;
  ttft.observe(0.001);
  ttft.observe(0.0011);
  ttft.observe(9999);
  EXPECT_EQ(ttft.counts.front(), 1u);
  EXPECT_EQ(ttft.counts[1], 1u);
  EXPECT_EQ(ttft.counts.back(), 1u);
  EXPECT_EQ(ttft.counts.size(), ttft.bounds.size() + 1);
  EXPECT_EQ(ttft.count, 3u);
}

}  // namespace
}  // namespace expertplex
