// How the leader of a CTA cluster hands one answer to everybody who computes it: all members and
// all warp roles of a pipeline (paper, Figure 4: "broadcasts the decision through DSMEM ... uses an
// mbarrier handoff"). Readers never look at a shared word of the scheduler themselves; they follow
// the messages in order, so no two of them can be in different phases or under different decisions
// at the same point of the pipeline.
//
// One ring per (pipeline, member CTA) in that member's shared memory, kDepth messages; a row of
// `taken` words in the leader's, one per reader of the cluster. What is handed on is a Claim: a
// tile, a verdict at a k-block check (kNothing: go on; kTile: park and run this), kResume or
// kAbort. Every reader takes every message.
//
// Nothing here waits: try_send and try_receive say false, and the caller waits with its limit and
// its abort check.
//
// Words (32-bit sequence numbers, cluster scope):
//   HandoffSlot::full   writer: the leader, release: message number + 1 lies in the slot. Reader:
//                       the roles of that member, acquire. Becomes visible: the message.
//   taken[reader]       writer: that reader, release: how many messages it has taken. Reader: the
//                       leader, acquire, before it overwrites a slot. Becomes visible: that the
//                       reader has read what lay in the slot.
// Sequence numbers wrap; only equality and differences up to kDepth are used.
#pragma once

#include <cstdint>

#include "apk/memory.h"
#include "apk/scheduler.h"
#include "base/host_device.h"

namespace expertplex::apk {

// A Claim as it is handed on: 32 bytes, the status in the descriptor's spare bytes.
struct HandoffSlot {
  TileDescriptor message;  // plain data between full and taken
  uint32_t full = 0;
};

template <uint32_t kDepth>
struct HandoffRing {
  static_assert(kDepth > 0 && (kDepth & (kDepth - 1)) == 0, "sequence numbers wrap at 2^32");
  HandoffSlot slots[kDepth];
};

// The leader's end. `rings` point to the members' rings (on the GPU: mapped DSMEM addresses),
// `taken` to `readers` words of the leader. Zero-initialised memory is an empty handoff.
template <typename Mem, uint32_t kDepth>
class HandoffSender {
 public:
  EXPERTPLEX_HOST_DEVICE HandoffSender(HandoffRing<kDepth>* const* rings, uint32_t members,
                                       const uint32_t* taken, uint32_t readers)
      : rings_(rings), members_(members), taken_(taken), readers_(readers) {}

  // False: some reader has not yet taken the message kDepth before this one.
  EXPERTPLEX_HOST_DEVICE bool try_send(const Claim& claim) {
    for (uint32_t r = 0; r < readers_; ++r) {
      if (sent_ - Mem::load(&taken_[r], Acquire{}, ClusterScope{}) >= kDepth) return false;
    }
    TileDescriptor message = claim.tile;
    message.status = static_cast<uint16_t>(claim.status);
    for (uint32_t m = 0; m < members_; ++m) {
      HandoffSlot* slot = &rings_[m]->slots[sent_ % kDepth];
      Mem::write(&slot->message, message);
      Mem::store(&slot->full, sent_ + 1, Release{}, ClusterScope{});
    }
    ++sent_;
    return true;
  }

  EXPERTPLEX_HOST_DEVICE uint32_t sent() const { return sent_; }

 private:
  HandoffRing<kDepth>* const* rings_;
  uint32_t members_;
  const uint32_t* taken_;
  uint32_t readers_;
  uint32_t sent_ = 0;
};

// One role's end, in one member.
template <typename Mem, uint32_t kDepth>
class HandoffReceiver {
 public:
  // `taken` is this reader's word at the leader.
  EXPERTPLEX_HOST_DEVICE HandoffReceiver(HandoffRing<kDepth>* ring, uint32_t* taken)
      : ring_(ring), taken_(taken) {}

  // False: the next message has not come yet.
  EXPERTPLEX_HOST_DEVICE bool try_receive(Claim* claim) {
    HandoffSlot* slot = &ring_->slots[received_ % kDepth];
    if (Mem::load(&slot->full, Acquire{}, ClusterScope{}) != received_ + 1) return false;
    claim->tile = Mem::read(&slot->message);
    claim->status = static_cast<ClaimStatus>(claim->tile.status);
    claim->tile.status = 0;
    ++received_;
    Mem::store(taken_, received_, Release{}, ClusterScope{});
    return true;
  }

  EXPERTPLEX_HOST_DEVICE uint32_t received() const { return received_; }

 private:
  HandoffRing<kDepth>* ring_;
  uint32_t* taken_;
  uint32_t received_ = 0;
};

}  // namespace expertplex::apk
