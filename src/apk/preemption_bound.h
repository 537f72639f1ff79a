// The preemption bound (paper, "Preemption is bounded by one tile execution time plus one local
// cluster check epoch"; DESIGN section 2): what a cluster may still do for the interrupted phase
// after the deciding agent's word for it has become visible, however long the operation is.
//
// A *check* is where the cluster's leader reads its preempt word: at every tile boundary, and with
// parking after every `check_interval` k-blocks inside a prefill tile.
//
//   claims  <= 1                                  the claim whose check came just before the word
//   tiles   <= handoff_depth + claims             begun by one member after the word: handed over
//                                                 before (at most the ring), plus that claim
//   k_blocks (parking only) <= (handoff_depth + 1) * check_interval
//                                                 computed by one member before it has decode in
//                                                 hand: what was released by verdicts before the
//                                                 word, plus the group whose check it just missed
//
// The last holds from the moment that decode has a claimable tile; tiles taken because the
// cluster's own phase has none (TileDescriptor::borrowed) are not counted, they keep nobody
// waiting. A resident pipeline owes prefill nothing: it starts at its next look. In time: k_blocks
// and one look with parking; the tiles and one look at tile boundaries. The tests check these
// numbers as equalities.
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
  if (mode == SwitchMode::kParking) bound.k_blocks = (handoff_depth + 1) * check_interval;
  return bound;
}

}  // namespace expertplex::apk
