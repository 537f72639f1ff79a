// Properties of the pure functions: tile order, footprint, budget, words, and templates.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

#include "apk/announcement.h"
#include "apk/budget.h"
#include "apk/footprint.h"
#include "apk/host_memory.h"
#include "apk/preempt_word.h"
#include "apk/scheduler_storage.h"
#include "apk/tile_order.h"

namespace expertplex::apk {
namespace {

// The same cases in every run; RC_PARAMS in the environment overrules.
[[maybe_unused]] const int kFixedSeed = setenv("RC_PARAMS", "seed=6102030", 0);

// An operation and its arrays, for tests of the order alone.
struct OrderedOperation {
  OperationTemplate shape;
  OperationFields fields;
  std::vector<RowBlock> blocks;

  OperationFault instantiate(const std::vector<uint32_t>& rows, uint32_t tokens) {
    blocks.assign(shape.max_row_blocks, {});
    OperationRequest request;
    request.epoch = 7;
    request.layer = 3;
    request.tokens = tokens;
    request.rows_per_expert = rows.data();
    return instantiate_operation<HostMemory>(shape, request, &fields, blocks.data());
  }
  OperationView view() const { return {&shape, &fields, blocks.data()}; }
};

OrderedOperation make_operation(uint32_t experts, uint32_t tile_rows, uint32_t row_group,
                                uint32_t gate_up_columns, uint32_t down_columns,
                                uint32_t reduce_tokens) {
  OrderedOperation op;
  op.shape.experts = experts;
  op.shape.gate_up = {tile_rows, 16};
  op.shape.down = {tile_rows, 32};
  op.shape.intermediate = gate_up_columns * 16 - 3;
  op.shape.hidden = down_columns * 32;
  op.shape.reduce_tokens = reduce_tokens;
  op.shape.row_group = row_group;
  op.shape.max_row_blocks = 4096;
  op.shape.max_tokens = 10000;
  return op;
}

using TileKey = std::tuple<int, uint32_t, uint32_t, uint32_t, uint32_t>;

// What must be computed, written down the slow obvious way.
std::set<TileKey> expected_tiles(const OperationTemplate& shape, const std::vector<uint32_t>& rows,
                                 uint32_t tokens) {
  std::set<TileKey> tiles;
  for (uint32_t e = 0; e < rows.size(); ++e) {
    for (uint32_t first = 0; first < rows[e]; first += shape.gate_up.rows) {
      const uint32_t count = std::min(shape.gate_up.rows, rows[e] - first);
      for (uint32_t c = 0; c * shape.gate_up.columns < shape.intermediate; ++c) {
        tiles.insert({0, e, first, count, c});
      }
      for (uint32_t c = 0; c * shape.down.columns < shape.hidden; ++c) {
        tiles.insert({1, e, first, count, c});
      }
    }
  }
  for (uint32_t t = 0; shape.reduce_tokens > 0 && t < tokens; t += shape.reduce_tokens) {
    tiles.insert({2, 0, t, std::min(shape.reduce_tokens, tokens - t), 0});
  }
  return tiles;
}

// Every index gives another tile of the expected set, row blocks are dense and agree between the
// stages, and GateUp, Down and Reduce follow each other.
void check_order(OrderedOperation& op, const std::vector<uint32_t>& rows, uint32_t tokens) {
  RC_ASSERT(op.instantiate(rows, tokens) == OperationFault::kNone);
  RC_ASSERT(op.fields.row_blocks ==
            moe_footprint(rows.data(), static_cast<uint32_t>(rows.size()), op.shape.gate_up.rows));
  std::set<TileKey> seen;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> blocks;
  int last_kind = 0;
  for (uint32_t i = 0; i < op.fields.tiles(); ++i) {
    const TileDescriptor tile = tile_at<HostMemory>(op.view(), i);
    const int kind = static_cast<int>(tile.kind);
    RC_ASSERT(kind >= last_kind);
    last_kind = kind;
    RC_ASSERT(tile.epoch == 7u && tile.layer == 3u && tile.row_count > 0u);
    RC_ASSERT(
        seen.insert({kind, tile.expert, tile.first_row, tile.row_count, tile.column_tile}).second);
    if (tile.kind != TileKind::kReduce) {
      RC_ASSERT(tile.row_block < op.fields.row_blocks);
      blocks.insert({tile.row_block, tile.expert, tile.first_row});
    }
  }
  RC_ASSERT(blocks.size() == op.fields.row_blocks);
  RC_ASSERT(seen == expected_tiles(op.shape, rows, tokens));
}

RC_GTEST_PROP(TileOrder, IsABijectionOntoTheTilesOfRaggedRows, ()) {
  const auto rows = *rc::gen::container<std::vector<uint32_t>>(
      *rc::gen::inRange<size_t>(1, 12),
      rc::gen::weightedOneOf<uint32_t>(
          {{2, rc::gen::just(0u)}, {5, rc::gen::inRange<uint32_t>(1, 40)}}));
  auto op = make_operation(static_cast<uint32_t>(rows.size()), *rc::gen::inRange(1u, 9u),
                           *rc::gen::inRange(1u, 7u), *rc::gen::inRange(1u, 5u),
                           *rc::gen::inRange(1u, 5u), *rc::gen::inRange(0u, 6u));
  check_order(op, rows, *rc::gen::inRange(0u, 40u));
}

RC_GTEST_PROP(TileOrder, HoldsForNoRowsAndForAllRowsOnOneExpert, ()) {
  auto op = make_operation(4, 16, *rc::gen::element(1u, 2u, 64u), 3, 2, 8);
  check_order(op, {0, 0, 0, 0}, 0);
  check_order(op, {0, 0, 0, 0}, 17);  // nothing routed here, but tokens to reduce
  check_order(op, {0, 0, 333, 0}, 100);
}

TEST(TileOrder, AGroupReadsAStripOfWeightsOnce) {
  // One expert, 4 row tiles in groups of 2, 2 columns: (0,0)(1,0)(0,1)(1,1)(2,0)(3,0)...
  auto op = make_operation(1, 1, 2, 2, 1, 0);
  ASSERT_EQ(op.instantiate({4}, 0), OperationFault::kNone);
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (uint32_t i = 0; i < op.fields.gate_up_tiles; ++i) {
    const TileDescriptor tile = tile_at<HostMemory>(op.view(), i);
    order.emplace_back(tile.row_block, tile.column_tile);
  }
  const std::vector<std::pair<uint32_t, uint32_t>> expected = {{0, 0}, {1, 0}, {0, 1}, {1, 1},
                                                               {2, 0}, {3, 0}, {2, 1}, {3, 1}};
  EXPECT_EQ(order, expected);
}

TEST(Operation, RequestsBeyondCapacityAreRefused) {
  auto op = make_operation(2, 4, 1, 1, 1, 8);
  op.shape.max_row_blocks = 3;
  op.shape.max_tokens = 10;
  EXPECT_EQ(op.instantiate({8, 4}, 10), OperationFault::kNone);
  EXPECT_EQ(op.instantiate({8, 5}, 10), OperationFault::kTooManyRowBlocks);
  EXPECT_EQ(op.instantiate({8, 4}, 11), OperationFault::kTooManyTokens);
  EXPECT_EQ(op.instantiate({UINT32_MAX, UINT32_MAX}, 0), OperationFault::kTooManyRowBlocks);
}

TEST(Operation, BadTemplatesAreNamed) {
  const OperationTemplate good = make_operation(2, 4, 1, 1, 1, 8).shape;
  EXPECT_EQ(check_template(good), OperationFault::kNone);
  auto bad = good;
  bad.hidden = 0;
  EXPECT_EQ(check_template(bad), OperationFault::kEmptyShape);
  bad = good;
  bad.down.rows = 8;
  EXPECT_EQ(check_template(bad), OperationFault::kRowsDiffer);
  bad = good;
  bad.phase = Phase::kDecode;
  EXPECT_EQ(check_template(bad), OperationFault::kDecodeReduces);
  bad = good;
  bad.max_row_blocks = 1u << 16;
  EXPECT_EQ(check_template(bad), OperationFault::kTooManyRowBlocks);
  bad = good;
  bad.max_row_blocks = 60000;
  bad.intermediate = 16 * 20000;
  EXPECT_EQ(check_template(bad), OperationFault::kTooManyTiles);
}

RC_GTEST_PROP(Footprint, IsTheSumOfCeilings, (std::vector<uint16_t> rows16)) {
  const uint32_t tile_rows = *rc::gen::inRange(1u, 300u);
  const std::vector<uint32_t> rows(rows16.begin(), rows16.end());
  uint64_t expected = 0;
  for (const uint32_t m : rows) {
    for (uint32_t first = 0; first < m; first += tile_rows) ++expected;
  }
  RC_ASSERT(moe_footprint(rows.data(), static_cast<uint32_t>(rows.size()), tile_rows) == expected);
}

Budget any_budget() {
  Budget budget;
  budget.decode_sms = *rc::gen::inRange(0u, 200u);
  budget.max_decode_sms = *rc::gen::inRange(0u, 200u);
  budget.expected_footprint_milli = *rc::gen::inRange(0u, 200000u);
  budget.sms_per_cluster = *rc::gen::inRange(1u, 5u);
  return budget;
}

RC_GTEST_PROP(Budget, LiesBetweenOneClusterAndQMaxBelowAll, ()) {
  const Budget budget = any_budget();
  const uint32_t clusters = *rc::gen::inRange(1u, 133u);
  const uint32_t q = contended_decode_clusters(budget, *rc::gen::arbitrary<uint32_t>(), clusters);
  RC_ASSERT(q >= 1u);
  RC_ASSERT(q <= std::max(1u, budget.max_decode_sms / budget.sms_per_cluster));
  RC_ASSERT(clusters == 1u || q < clusters);
}

RC_GTEST_PROP(Budget, IsMonotoneInTheFootprint, ()) {
  const Budget budget = any_budget();
  const uint32_t x = *rc::gen::inRange(0u, 5000u);
  const uint32_t y = *rc::gen::inRange(x, 6000u);
  RC_ASSERT(contended_decode_clusters(budget, x, 66) <= contended_decode_clusters(budget, y, 66));
}

TEST(Budget, FollowsTheFormula) {
  const Budget budget{.decode_sms = 40,
                      .max_decode_sms = 100,
                      .expected_footprint_milli = 16500,
                      .sms_per_cluster = 2};
  // 40 * 33 / 16.5 = 80 SMs = 40 clusters; 40 * 9 / 16.5 = 21.8 -> 22 SMs = 11 clusters.
  EXPECT_EQ(contended_decode_clusters(budget, 33, 66), 40u);
  EXPECT_EQ(contended_decode_clusters(budget, 9, 66), 11u);
  EXPECT_EQ(contended_decode_clusters(budget, 1000, 66), 50u);        // Q_max
  EXPECT_EQ(contended_decode_clusters(budget, 1000, 20), 19u);        // less than all
  EXPECT_EQ(contended_decode_clusters(budget, 0, 66), 1u);            // at least one
  EXPECT_EQ(contended_decode_clusters(budget, UINT32_MAX, 66), 50u);  // no overflow
  EXPECT_EQ(contended_decode_clusters(budget, 1000, 1), 1u);
}

RC_GTEST_PROP(PreemptWord, SurvivesPacking, (uint32_t epoch, bool lend, bool resident, bool park)) {
  PreemptWord word;
  word.epoch = epoch;
  word.decision.main_phase = *rc::gen::element(Phase::kPrefill, Phase::kDecode);
  word.decision.lend = lend;
  word.decision.resident = resident;
  word.decision.park = park;
  word.decision.preempt = !lend;
  word.decision.abort = resident;
  word.decision.pause = *rc::gen::element(PausePolicy::kNever, PausePolicy::kWindow2,
                                          PausePolicy::kWindow1, PausePolicy::kAll);
  const PreemptWord back = unpack_preempt_word(pack_preempt_word(word));
  RC_ASSERT(back.epoch == epoch);
  RC_ASSERT(pack_decision(back.decision) == pack_decision(word.decision));
  RC_ASSERT(back.decision.pause == word.decision.pause);
}

TEST(Pause, WindowsLimitTheLoadsInFlight) {
  EXPECT_EQ(loads_in_flight(PausePolicy::kNever, 3), 3u);
  EXPECT_EQ(loads_in_flight(PausePolicy::kWindow2, 3), 2u);
  EXPECT_EQ(loads_in_flight(PausePolicy::kWindow2, 1), 1u);
  EXPECT_EQ(loads_in_flight(PausePolicy::kWindow1, 3), 1u);
  EXPECT_EQ(loads_in_flight(PausePolicy::kAll, 3), 0u);
}

// What has been offered stands; what has not been said yet is not guessed.
TEST(Offers, SayOneOperationAhead) {
  uint64_t offer = 0;
  EXPECT_EQ(offered_clusters(offer, 1), kNotOffered);
  offer = next_offer(offer, 1, 48);
  EXPECT_EQ(offered_clusters(offer, 1), 48u);
  EXPECT_EQ(offered_clusters(offer, 2), 48u);
  EXPECT_EQ(offered_clusters(offer, 3), kNotOffered);
  offer = next_offer(offer, 2, 0);  // preemption was switched off in the meantime
  EXPECT_EQ(offered_clusters(offer, 1), 0u) << "it is over";
  EXPECT_EQ(offered_clusters(offer, 2), 48u);
  EXPECT_EQ(offered_clusters(offer, 3), 0u);
  offer = next_offer(offer, 5, kMaxClusters);  // 4 came and went unseen, and 5 was never offered
  EXPECT_EQ(offered_clusters(offer, 5), kMaxClusters);
}

TEST(Offers, EpochsWrapAround) {
  const uint64_t offer = next_offer(next_offer(0, 0xFFFFFFFEu, 3), 0xFFFFFFFFu, 5);
  EXPECT_EQ(offered_clusters(offer, 0xFFFFFFFFu), 3u);
  EXPECT_EQ(offered_clusters(offer, 0), 5u);
  EXPECT_EQ(offered_clusters(offer, 1), kNotOffered);
}

}  // namespace
}  // namespace expertplex::apk
