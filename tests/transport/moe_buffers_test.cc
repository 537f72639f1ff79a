#include "transport/moe_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace expertplex::transport {
namespace {

MoeBufferConfig random_config(Random& random) {
  MoeBufferConfig c;
  c.layer_count = static_cast<int>(random.between(1, 4));
  c.expert_count = static_cast<int>(random.between(1, 24));
  c.moe_server_count = static_cast<int>(random.between(1, c.expert_count));
  c.top_k = static_cast<int>(random.between(1, c.expert_count));
  c.dispatch_row_bytes = random.between(1, 300);
  c.combine_row_bytes = random.between(1, 300);
  c.decode_participants = static_cast<int>(random.between(0, 4));
  c.max_decode_rows = static_cast<int>(random.between(1, 20));
  c.microbatches = static_cast<int>(random.between(1, 2));
  c.prefill_senders = static_cast<int>(random.between(c.decode_participants == 0 ? 1 : 0, 3));
  c.max_prefill_tokens = static_cast<int>(random.between(1, 200));
  c.prefill_page_rows = static_cast<int>(random.between(1, 32));
  return c;
}

struct Piece {
  size_t begin, end;
};

// Every element that an accessor can name, with its bytes.
std::vector<Piece> all_pieces(const MoeBufferLayout& l) {
  const MoeBufferConfig& c = l.config();
  std::vector<Piece> pieces;
  const auto add = [&](size_t offset, size_t bytes) { pieces.push_back({offset, offset + bytes}); };
  for (int channel = 0; channel < c.channel_count(); ++channel) {
    add(l.iteration_word(channel), 8);
    add(l.done_word(channel), 8);
    for (int layer = 0; layer < c.layer_count; ++layer) {
      for (int p = 0; p < std::max(1, c.decode_participants); ++p) {
        add(l.ready_word(channel, layer, p), 8);
      }
    }
  }
  for (int m = 0; m < c.microbatches; ++m) {
    for (int e = 0; e < l.local_experts() && c.decode_participants > 0; ++e) {
      add(l.decode_counter(m, e), 8);
      add(l.decode_slot(m, e, 0), 4 * static_cast<size_t>(l.decode_capacity()));
      for (int r = 0; r < l.decode_capacity(); ++r) {
        add(l.decode_row(m, e, r), c.dispatch_row_bytes);
      }
    }
    for (int s = 0; s < l.decode_slots() && c.decode_participants > 0; ++s) {
      add(l.decode_combine_row(m, s), c.combine_row_bytes);
    }
    for (int s = 0; s < c.prefill_senders; ++s) {
      add(l.prefill_expert_rows(m, s), 4 * static_cast<size_t>(l.local_experts()));
      add(l.prefill_token_offsets(m, s), 4 * (static_cast<size_t>(c.max_prefill_tokens) + 1));
      add(l.prefill_token_entries(m, s), 8 * static_cast<size_t>(l.prefill_entries()));
      for (int r = 0; r < l.prefill_rows(); ++r) {
        add(l.prefill_row(m, s, r), c.dispatch_row_bytes);
      }
      for (int t = 0; t < c.max_prefill_tokens; ++t) {
        add(l.prefill_combine_row(m, s, t), c.combine_row_bytes);
      }
    }
  }
  return pieces;
}

TEST(MoeBuffers, NothingOverlapsAndAllLiesInside) {
  Random random(7);
  for (int i = 0; i < 100; ++i) {
    const MoeBufferConfig config = random_config(random);
    for (int server = 0; server < config.moe_server_count; ++server) {
      const auto layout = MoeBufferLayout::plan(config, server);
      ASSERT_TRUE(layout) << layout.error().message;
      auto pieces = all_pieces(*layout);
      std::sort(pieces.begin(), pieces.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
      for (size_t p = 1; p < pieces.size(); ++p) {
        ASSERT_GE(pieces[p].begin, pieces[p - 1].end) << layout->describe();
      }
      ASSERT_LE(pieces.back().end, layout->total_bytes());
    }
  }
}

// Any routing fits: what the clients place never exceeds the planned pages and entries.
TEST(MoeBuffers, PrefillCapacityHoldsForAnyRouting) {
  Random random(8);
  for (int i = 0; i < 2000; ++i) {
    const MoeBufferConfig c = random_config(random);
    if (c.prefill_senders == 0) continue;
    const int server = static_cast<int>(random.below(c.moe_server_count));
    const auto layout = MoeBufferLayout::plan(c, server);
    ASSERT_TRUE(layout);
    // Adversarial: from "all on one expert" to "spread so that every expert has a broken page".
    const int experts = layout->local_experts();
    const int per_token = std::min(c.top_k, experts);
    std::vector<int> rows(experts, 0);
    const int favourite = static_cast<int>(random.below(experts));
    const double skew = random.unit();
    for (int t = 0; t < c.max_prefill_tokens; ++t) {
      std::vector<int> ids(experts);
      for (int e = 0; e < experts; ++e) ids[e] = e;
      for (int k = 0; k < per_token; ++k) {
        const size_t pick = k + random.below(experts - k);
        std::swap(ids[k], ids[pick]);
      }
      if (random.chance(skew)) ids[0] = favourite;
      std::sort(ids.begin(), ids.begin() + per_token);
      const auto end = std::unique(ids.begin(), ids.begin() + per_token);
      for (auto it = ids.begin(); it != end; ++it) ++rows[*it];
    }
    int pages = 0, entries = 0;
    for (const int r : rows) {
      pages += (r + c.prefill_page_rows - 1) / c.prefill_page_rows;
      entries += r;
    }
    ASSERT_LE(pages, layout->prefill_pages());
    ASSERT_LE(entries, layout->prefill_entries());
  }
}

TEST(MoeBuffers, ExpertsAreDealtOutInOrderAndCompletely) {
  Random random(9);
  for (int i = 0; i < 300; ++i) {
    MoeBufferConfig c = random_config(random);
    c.expert_count = static_cast<int>(random.between(1, 300));
    c.moe_server_count = static_cast<int>(random.between(1, c.expert_count));
    int next = 0;
    for (int s = 0; s < c.moe_server_count; ++s) {
      ASSERT_EQ(c.first_expert(s), next);
      ASSERT_GE(c.local_experts(s), 1);
      for (int e = 0; e < c.local_experts(s); ++e) ASSERT_EQ(c.server_of_expert(next++), s);
    }
    ASSERT_EQ(next, c.expert_count);
  }
}

TEST(MoeBuffers, BadConfigurationsAreNamed) {
  Random random(10);
  MoeBufferConfig good = random_config(random);
  good.decode_participants = good.prefill_senders = 1;
  const auto complaint = [&](auto change) {
    MoeBufferConfig bad = good;
    change(bad);
    const auto layout = MoeBufferLayout::plan(bad, 0);
    EXPECT_FALSE(layout);
    return layout ? std::string() : layout.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(complaint([](auto& c) { c.layer_count = 0; }), "layer_count: expected 1"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.top_k = 999; }), "top_k"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.decode_participants = 33; }), "0 to 32, got 33"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.max_prefill_tokens = -1; }), "max_prefill_tokens"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.prefill_page_rows = 0; }), "prefill_page_rows"));
  EXPECT_TRUE(has(complaint([](auto& c) { c.moe_server_count = 0; }), "moe_server_count"));
  EXPECT_FALSE(MoeBufferLayout::plan(good, good.moe_server_count));
}

TEST(MoeBuffers, DescribeShowsEveryRegionInBytes) {
  Random random(11);
  MoeBufferConfig c = random_config(random);
  c.decode_participants = c.prefill_senders = 2;
  const auto layout = MoeBufferLayout::plan(c, 0);
  ASSERT_TRUE(layout);
  const std::string text = layout->describe();
  size_t sum = 0;
  for (const auto& region : layout->regions()) {
    EXPECT_NE(text.find(region.name), std::string::npos);
    EXPECT_NE(text.find(std::to_string(region.bytes)), std::string::npos);
    sum += region.bytes;
  }
  EXPECT_EQ(sum, layout->total_bytes());
}

}  // namespace
}  // namespace expertplex::transport
