// The memory that an MoE server's window consists of: which words and buffers, where, how large, who
// writes and reads them. Both sides compute the same layout from the same MoeBufferConfig. Capacities
// are worst case (every row on one expert) and are printed before allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex::transport {

enum class MoePhase : uint8_t { kPrefill = 0, kDecode = 1 };

struct MoeBufferConfig {
  int layer_count = 0;
  int expert_count = 0;       // of the model
  int moe_server_count = 0;   // server s holds experts [s * expert_count / n, (s + 1) * ... / n)
  int top_k = 0;
  size_t dispatch_row_bytes = 0;  // activations and their scales
  size_t combine_row_bytes = 0;
  int decode_participants = 1;
  int max_decode_rows = 0;     // per participant and iteration
  int microbatches = 1;
  int prefill_senders = 1;
  int max_prefill_tokens = 0;  // per sender and iteration
  int prefill_page_rows = 0;   // M_t: rows of an expert are padded to pages of that many

  int first_expert(int server) const { return server * expert_count / moe_server_count; }
  int server_of_expert(int expert) const;
};

}  // namespace expertplex::transport
