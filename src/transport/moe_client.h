// MoeClient: an attention server's side of MoE traffic (DESIGN section 2, "One-sided, no
// receiver"). dispatch() pushes each row to its final address on the MoE server that holds the
// expert and then publishes the ready words; combine() waits for the done words and pulls the
// results. Rows are bytes here: how they are encoded (float, BF16, FP8 with scales) is the
// backend's business.
//
// Decode: the decode attention servers form one group; an operation takes every participant's rows
// and is ready when each has published its count. One region per (microbatch, expert) is shared by
// all senders, rows reserved by one remote atomic per (sender, expert). Results: one row per
// (token, k), weighted and added by the caller in ascending expert id.
// Prefill: each prefill attention server is a group of its own with buffers of its own, rows packed
// by expert in pages of M_t. Results: one row per (token, MoE server), already weighted and added
// there in ascending expert id.
//
// Errors: kDeadlineExceeded names the word and the server (or, in the decode group, the
// participants) that did not answer; kCancelled after abort (for good); kUnavailable for a
// participant that is no longer in the mask. After another error than kCancelled begin_iteration()
// starts anew.
//
// An iteration is: begin_iteration(), then either dispatch(l), combine(l) for every layer l, or
// skip_iteration(). A removed participant must have ended before the group's next iteration: a put
// that is still under way is not fenced on one machine.
// Thread rules: one thread per client, except abort().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/moe_buffers.h"
#include "transport/window.h"

namespace expertplex::transport {

// Row t of an operation goes to experts ids[t * top_k ...], ascending within a token, with weights
// beside them.
struct Routing {
  int token_count = 0;
  int top_k = 0;
  std::span<const int32_t> expert_ids;  // [token_count, top_k]
  std::span<const float> weights;       // [token_count, top_k]
};

// What one token's results consist of: `rows[i]` is one encoded result row; the token's MoE output
// is the sum of weights[i] * rows[i] in this order (weights are 1 where the MoE server has applied
// them). Valid until the next combine().
struct CombinedToken {
  std::span<const std::byte* const> rows;
  std::span<const float> weights;
};

class MoeClient {
 public:
  struct Config {
    MoePhase phase = MoePhase::kDecode;
    int member = 0;      // participant of the decode group, or prefill sender
    int microbatch = 0;  // a client per microbatch; they are independent of each other
    std::string name;    // for errors: "decode attention server 0"
    std::vector<std::string> moe_windows;  // one per MoE server, in order of their experts
    MoeBufferConfig buffers;               // the same that the MoE servers were given
    Nanoseconds wait_limit = 30 * kSecond;
  };

  static Result<std::unique_ptr<MoeClient>> connect(Fabric& fabric, const Config& config);
  virtual ~MoeClient() = default;

  // Advances the epoch. In the decode group the leader (participant 0) also publishes the
  // participant mask of this iteration; the others wait for it. After an iteration that this client
  // skipped, the leader first waits until the others have finished it.
  virtual Result<void> begin_iteration() = 0;

  // Decode leader only: bit i = participant i takes part, from the next begin_iteration() on. The
  // leader's own bit must be set. At first all take part.
  virtual Result<void> set_participants(uint32_t mask) = 0;

  // Pushes rows [token_count, dispatch_row_bytes] of `layer` to their experts and publishes the
  // ready word of every MoE server, also of those that get no rows. Layers come in order, each
  // once.
  virtual Result<void> dispatch(int layer, std::span<const std::byte> rows,
                                const Routing& routing) = 0;

  // Waits until every MoE server is done with `layer` and pulls the results of this client's
  // tokens.
  virtual Result<void> combine(int layer) = 0;
  virtual CombinedToken combined(int token) const = 0;

  // For a participant without tokens in the iteration just begun: zero counts for all layers at
  // once.
  virtual Result<void> skip_iteration() = 0;

  // Ends this client's waits for good; from any thread.
  virtual void abort() = 0;
};

}  // namespace expertplex::transport
