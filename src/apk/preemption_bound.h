// The preemption bound (paper, "Preemption is bounded by one tile execution time plus one local
// cluster check epoch"; DESIGN section 2): what a cluster may still do for the interrupted phase
// after the deciding agent's word for it has become visible, however long the operation is.
//
// A *check* is where the cluster's leader reads its preempt word: at every tile boundary, and with
// parking after every `check_interval` k-blocks inside a prefill tile.
//
// With D the depth of the handoff ring (handoff.h), D = 0 where the leader computes itself what it
// claims (a CPU worker, a cluster of one CTA without a claiming warp):
//
//   claims   <= 1                 the claim whose check came just before the word
//   tiles    <= D + claims        begun by one member: what lay in the ring, plus that claim
//   k_blocks (parking only)
//            <= check_interval            D = 0: the group whose check was just missed
//            <= (D + 2) * check_interval  D > 0: the group under way at that member, the verdicts
//                                         that lay in the ring, and that check
//
// k_blocks are those computed while decode has a claimable tile, or one in hand. Tiles taken
// because the cluster's own phase has none (TileDescriptor::borrowed) are not counted: they keep
// nobody waiting. A resident pipeline owes prefill nothing: it starts at its next look. In time:
// the k-blocks and one look with parking; the tiles and one look at tile boundaries. Members of a
// multicast are tied closer than the ring alone ties them, so a kernel may stay below.
// tests/apk/interleaving_test checks that these numbers are reached and never exceeded.
#pragma once

#include <cstdint>

#include "apk/policy.h"
#include "base/host_device.h"

namespace expertplex::apk {

struct PreemptionBound {
  uint32_t claims = 0;
  uint32_t tiles = 0;
  uint32_t k_blocks = 0;  // 0 where k-blocks are no boundary
};

EXPERTPLEX_HOST_DEVICE constexpr PreemptionBound preemption_bound(SwitchMode mode,
                                                                  uint32_t handoff_depth,
                                                                  uint32_t check_interval) {
  PreemptionBound bound;
  bound.claims = 1;
  bound.tiles = handoff_depth + bound.claims;
  if (mode == SwitchMode::kParking) {
    bound.k_blocks = (handoff_depth == 0 ? 1 : handoff_depth + 2) * check_interval;
  }
  return bound;
}

}  // namespace expertplex::apk
