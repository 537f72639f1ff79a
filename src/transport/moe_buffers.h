// The memory that an MoE server's window consists of: which words and buffers, where, how large,
// who writes and reads them. Both sides compute the same layout from the same MoeBufferConfig.
// Capacities are worst case (every row on one expert) and are printed before allocation.
//
// A *channel* is one group of senders and one microbatch: what has operations of its own, one at a
// time. The decode attention servers are one group; each prefill attention server is a group of
// one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex::transport {

enum class MoePhase : uint8_t { kPrefill = 0, kDecode = 1 };

constexpr int kMaxDecodeParticipants = 32;  // bits of the participant mask

struct MoeBufferConfig {
  int layer_count = 0;
  int expert_count = 0;      // of the model
  int moe_server_count = 0;  // server s holds experts [s * expert_count / n, (s + 1) * ... / n)
  int top_k = 0;
  size_t dispatch_row_bytes = 0;  // activations and their scales
  size_t combine_row_bytes = 0;
  int decode_participants = 1;
  int max_decode_rows = 0;  // per participant and iteration
  int microbatches = 1;
  int prefill_senders = 1;
  int max_prefill_tokens = 0;  // per sender and iteration
  int prefill_page_rows = 0;   // M_t: rows of an expert are padded to pages of that many

  int first_expert(int server) const { return server * expert_count / moe_server_count; }
  int local_experts(int server) const { return first_expert(server + 1) - first_expert(server); }
  int server_of_expert(int expert) const;
  int group_count() const { return 1 + prefill_senders; }
  int channel_count() const { return microbatches * group_count(); }
  // `member`: prefill sender; ignored for decode.
  int channel(MoePhase phase, int member, int microbatch) const {
    return microbatch * group_count() + (phase == MoePhase::kDecode ? 0 : 1 + member);
  }

  // kInvalidArgument names the field, what is expected and what was there.
  Result<void> check() const;
};

// Row counters are stamped per operation, everything else per iteration. Wraps like epochs do.
constexpr uint32_t operation_epoch(uint32_t iteration, int layer, int layer_count) {
  return iteration * static_cast<uint32_t>(layer_count) + static_cast<uint32_t>(layer);
}

// Who parks where in an MoE server's window: a done word does not wake the MoE server's workers, a
// ready word does not wake attention servers.
constexpr int kMoeReadyBell = 0;      // the MoE server's workers: ready words
constexpr int kMoeDoneBell = 1;       // attention servers: done words
constexpr int kMoeIterationBell = 2;  // decode participants: the iteration word
constexpr int kMoeBells = 3;

// Words are {epoch, value} (window.h); "iteration" is the epoch of the channel's iteration.
enum class MoeRegion : uint8_t {
  // [channel] {iteration, participant mask}. Writer: the group's leader (decode participant 0, or
  // the
  // prefill sender) at the start of an iteration, into every MoE server, server 0 last; rings
  // kMoeIterationBell. Readers: the other participants (at server 0) and the MoE server, which
  // finds
  // it in place when it has seen the leader's ready word. Visible with it: nothing else.
  kIterationWords,
  // [channel][layer][participant] {iteration, count + 1}: count is the rows sent to this server for
  // decode, the tokens that have rows on it for prefill. Writer: that participant; rings
  // kMoeReadyBell. Reader: the MoE server. Visible with it: the participant's rows, slots, counters
  // (decode), expert rows and token lists (prefill, unless count is 0) of that layer. At server 0,
  // layer 0, value 0 says that the participant has begun the iteration: one that was restarted in
  // the
  // middle of it waits for the next.
  kReadyWords,
  // [channel] {iteration, layer + 1} of the last finished operation. Writer: the MoE server; rings
  // kMoeDoneBell. Readers: the channel's attention servers. Visible with it: the layer's combine
  // rows;
  // and the dispatch memory of the layer is free again.
  kDoneWords,
  // Decode, [microbatch][local expert] {operation epoch, rows}. Writers: all participants, by
  // reserve(). Reader: the MoE server, after all ready words.
  kDecodeCounters,
  // Decode, [microbatch][local expert][row] uint32: the combine slot that the row's result goes to.
  // Writer: who reserved the row. Reader: the MoE server, after all ready words.
  kDecodeSlots,
  // Decode, [microbatch][local expert][row] dispatched rows. Same writers and readers.
  kDecodeRows,
  // Decode, [microbatch][slot] result rows; slot = (participant * max_decode_rows + token) * top_k
  // + k.
  // Writer: the MoE server. Reader: the participant, after the done word; free for the MoE server
  // again with the participant's next ready word.
  kDecodeCombine,
  // Prefill, [microbatch][sender][local expert] uint32 rows. Writer: the sender. Reader: the MoE
  // server, after the ready word. The pages of expert e follow those of the experts before it.
  kPrefillExpertRows,
  // Prefill, [microbatch][sender][token on this server + 1] uint32: where its entries begin.
  kPrefillTokenOffsets,
  // Prefill, [microbatch][sender][entry] PrefillTokenEntry, ascending expert within a token.
  kPrefillTokenEntries,
  // Prefill, [microbatch][sender][page * prefill_page_rows + row] dispatched rows.
  kPrefillRows,
  // Prefill, [microbatch][sender][token on this server] result rows, weighted and added. Writer:
  // the
  // MoE server. Reader: the sender, after the done word.
  kPrefillCombine,
};
constexpr int kMoeRegionCount = 12;

struct PrefillTokenEntry {
  uint32_t row = 0;  // page * prefill_page_rows + row in page
  float weight = 0;
};
static_assert(sizeof(PrefillTokenEntry) == 8);

class MoeBufferLayout {
 public:
  static Result<MoeBufferLayout> plan(const MoeBufferConfig& config, int server);

  const MoeBufferConfig& config() const { return config_; }
  int server() const { return server_; }
  int local_experts() const { return config_.local_experts(server_); }
  size_t total_bytes() const { return total_bytes_; }
  // One line per region: name, count, bytes, offset; and the sum.
  std::string describe() const;

  // Rows of one decode region (microbatch, expert).
  int decode_capacity() const { return config_.decode_participants * config_.max_decode_rows; }
  int decode_slots() const { return decode_capacity() * config_.top_k; }
  // Pages, rows (padding included) and token list entries of one prefill sender at most.
  int prefill_pages() const { return prefill_pages_; }
  int prefill_rows() const { return prefill_pages_ * config_.prefill_page_rows; }
  int prefill_entries() const { return prefill_entries_; }

  // Bytes from one row to the next: row bytes rounded up to 16.
  size_t dispatch_stride() const { return dispatch_stride_; }
  size_t combine_stride() const { return combine_stride_; }

  // Byte offsets in the window.
  size_t iteration_word(int channel) const;
  size_t ready_word(int channel, int layer, int participant) const;
  size_t done_word(int channel) const;
  size_t decode_counter(int microbatch, int local_expert) const;
  size_t decode_slot(int microbatch, int local_expert, int row) const;
  size_t decode_row(int microbatch, int local_expert, int row) const;
  size_t decode_combine_row(int microbatch, int slot) const;
  size_t prefill_expert_rows(int microbatch, int sender) const;
  size_t prefill_token_offsets(int microbatch, int sender) const;
  size_t prefill_token_entries(int microbatch, int sender) const;
  size_t prefill_row(int microbatch, int sender, int row) const;
  size_t prefill_combine_row(int microbatch, int sender, int token) const;

  // One array of equal elements, grouped in instances that start at multiples of 64 bytes.
  struct Region {
    MoeRegion kind{};
    const char* name = "";
    size_t instances = 0, elements = 0, element_bytes = 0;  // elements per instance
    size_t instance_stride = 0, offset = 0, bytes = 0;
  };
  const std::array<Region, kMoeRegionCount>& regions() const { return regions_; }

 private:
  MoeBufferLayout() = default;
  void add(MoeRegion kind, const char* name, size_t instances, size_t elements,
           size_t element_bytes);
  size_t at(MoeRegion kind, int instance, int element) const;

  MoeBufferConfig config_;
  int server_ = 0;
  int prefill_pages_ = 0, prefill_entries_ = 0;
  size_t dispatch_stride_ = 0, combine_stride_ = 0;
  size_t total_bytes_ = 0;
  std::array<Region, kMoeRegionCount> regions_;
};

}  // namespace expertplex::transport
