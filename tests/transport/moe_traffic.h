// An attention server of transport tests: random ragged operations through a MoeClient, every
// result compared with what fake_moe_server.h must have made of it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "fake_moe_server.h"
#include "transport/moe_client.h"

namespace expertplex::transport {

inline MoeBufferConfig small_config() {
  MoeBufferConfig c;
  c.layer_count = 3;
  c.expert_count = 7;
  c.moe_server_count = 2;
  c.top_k = 3;
  c.dispatch_row_bytes = 44;
  c.combine_row_bytes = 40;
  c.decode_participants = 2;
  c.max_decode_rows = 6;
  c.microbatches = 2;
  c.prefill_senders = 2;
  c.max_prefill_tokens = 40;
  c.prefill_page_rows = 4;
  return c;
}

inline std::vector<std::string> window_names(const MoeBufferConfig& config) {
  std::vector<std::string> names;
  for (int s = 0; s < config.moe_server_count; ++s) names.push_back("moe" + std::to_string(s));
  return names;
}

inline MoeClient::Config client_config(const MoeBufferConfig& buffers, MoePhase phase, int member,
                                       int microbatch = 0) {
  MoeClient::Config c;
  c.phase = phase;
  c.member = member;
  c.microbatch = microbatch;
  c.name = (phase == MoePhase::kDecode ? "decode attention server " : "prefill attention server ") +
           std::to_string(member);
  c.moe_windows = window_names(buffers);
  c.buffers = buffers;
  c.wait_limit = 60 * kSecond;
  return c;
}

// One operation's input, drawn at random.
struct TrafficRows {
  std::vector<uint32_t> words;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int tokens = 0;

  Routing routing(int top_k) const { return {tokens, top_k, ids, weights}; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words)); }
};

inline TrafficRows draw_rows(Random& random, const MoeBufferConfig& c, int tokens) {
  TrafficRows rows;
  rows.tokens = tokens;
  rows.words.resize(tokens * c.dispatch_row_bytes / 4);
  for (uint32_t& word : rows.words) word = static_cast<uint32_t>(random.next());
  // Few experts in use: the others stay empty.
  const int in_use = static_cast<int>(random.between(c.top_k, c.expert_count));
  const int first = static_cast<int>(random.below(c.expert_count - in_use + 1));
  for (int t = 0; t < tokens; ++t) {
    int needed = c.top_k;
    for (int e = first; needed > 0; ++e) {
      const int left = first + in_use - e;
      if (static_cast<int>(random.below(left)) >= needed) continue;
      rows.ids.push_back(e);
      rows.weights.push_back(static_cast<float>(random.between(1, 9)));
      --needed;
    }
  }
  return rows;
}

// Empty if token t's results are as they must be.
inline std::string check_token(const MoeClient& client, const MoeBufferConfig& c, MoePhase phase,
                               int layer, const TrafficRows& rows, int t) {
  const CombinedToken token = client.combined(t);
  const uint32_t* in = rows.words.data() + t * c.dispatch_row_bytes / 4;
  const size_t words = c.combine_row_bytes / 4;
  std::vector<uint32_t> expected(words, 0), got(words, 0);
  for (int k = 0; k < c.top_k; ++k) {
    for (size_t i = 0; i < words; ++i) {
      expected[i] += static_cast<uint32_t>(rows.weights[t * c.top_k + k]) *
                     fake_expert(in[i], rows.ids[t * c.top_k + k], layer, i);
    }
  }
  if (phase == MoePhase::kDecode && token.rows.size() != static_cast<size_t>(c.top_k)) {
    return "expected one row per expert";
  }
  for (size_t r = 0; r < token.rows.size(); ++r) {
    if (phase == MoePhase::kPrefill && token.weights[r] != 1.0f) return "weight applied twice";
    for (size_t i = 0; i < words; ++i) {
      uint32_t word;
      std::memcpy(&word, token.rows[r] + 4 * i, 4);
      got[i] += static_cast<uint32_t>(token.weights[r]) * word;
    }
  }
  return got == expected ? "" : "wrong result of token " + std::to_string(t);
}

// Runs `iterations` iterations; returns the first complaint or an empty string.
inline std::string run_traffic(MoeClient& client, const MoeBufferConfig& c, MoePhase phase,
                               uint64_t seed, int iterations, double skip_chance = 0.2) {
  Random random(seed);
  const int most = phase == MoePhase::kDecode ? c.max_decode_rows : c.max_prefill_tokens;
  for (int i = 0; i < iterations; ++i) {
    if (auto begun = client.begin_iteration(); !begun) return begun.error().message;
    if (random.chance(skip_chance)) {
      if (auto skipped = client.skip_iteration(); !skipped) return skipped.error().message;
      continue;
    }
    const int tokens = static_cast<int>(random.chance(0.1) ? most : random.between(0, most));
    for (int layer = 0; layer < c.layer_count; ++layer) {
      const TrafficRows rows = draw_rows(random, c, tokens);
      if (auto sent = client.dispatch(layer, rows.bytes(), rows.routing(c.top_k)); !sent) {
        return sent.error().message;
      }
      if (auto pulled = client.combine(layer); !pulled) return pulled.error().message;
      for (int t = 0; t < tokens; ++t) {
        if (auto complaint = check_token(client, c, phase, layer, rows, t); !complaint.empty()) {
          return complaint + " in iteration " + std::to_string(i);
        }
      }
    }
  }
  return "";
}

}  // namespace expertplex::transport
