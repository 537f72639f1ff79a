// How many CTA clusters decode gets while both phases are ready (paper section 6.3; DESIGN
// section 2, "Budget under contention"):
//   q_t = min(Q_max, ceil_c(q * x_moe / x_star)),   1 cluster <= q_t <= Q_max < all
// q and x_star come from the plan, x_moe from the decode operation at hand; ceil_c rounds up to
// whole clusters. Decode is protected first, Q_max preserves prefill's progress. Integers only:
// host and device must agree.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace expertplex::apk {

struct Budget {
  uint32_t decode_sms = 0;      // q: SMs at the expected footprint
  uint32_t max_decode_sms = 0;  // Q_max, SMs; a cluster that it covers in part does not count
  uint32_t expected_footprint_milli = 0;  // x_star in thousandths of a row tile
  uint32_t sms_per_cluster = 1;
};

// q_t in clusters. With one cluster in all (one worker thread) decode gets it: prefill then runs
// only while decode has nothing claimable.
// REQUIRES: clusters > 0, sms_per_cluster > 0. x_star = 0 reads as "no expectation": q as it is.
EXPERTPLEX_HOST_DEVICE constexpr uint32_t contended_decode_clusters(const Budget& budget,
                                                                    uint32_t x_moe,
                                                                    uint32_t clusters) {
  const uint64_t c = budget.sms_per_cluster;
  uint64_t limit = budget.max_decode_sms / c;
  if (limit > clusters - 1) limit = clusters - 1;
  if (limit == 0) limit = 1;
  uint64_t wanted = (budget.decode_sms + c - 1) / c;
  if (budget.expected_footprint_milli > 0) {
    const uint64_t scaled = uint64_t{budget.decode_sms} * x_moe;  // SMs * x_moe < 2^64
    if (scaled > UINT64_MAX / 1000) return static_cast<uint32_t>(limit);
    const uint64_t divisor = budget.expected_footprint_milli * c;
    wanted = scaled * 1000 / divisor + (scaled * 1000 % divisor != 0);
  }
  if (wanted == 0) wanted = 1;
  return static_cast<uint32_t>(wanted < limit ? wanted : limit);
}

}  // namespace expertplex::apk
