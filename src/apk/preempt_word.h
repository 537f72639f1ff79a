// The word by which the deciding agent tells one CTA cluster what to do: {epoch:32, decision:32}.
//
// Preempt word, one per cluster. Writer: the holder of the deciding-agent role, only when the
// decision changes, release, device scope. Reader: that cluster's leader at its check points (and
// each prefill producer, for the pause alone), relaxed, device scope. What becomes visible: the
// word itself; the operations it speaks of are published by their own words, which the claim
// acquires. The epoch grows by one with every write, so that a repeated decision is a new word.
#pragma once

#include <cstdint>

#include "apk/phase.h"
#include "apk/policy.h"
#include "base/host_device.h"

namespace expertplex::apk {

struct Decision {
  Phase main_phase = Phase::kPrefill;  // whose tiles the main pipeline takes first
  bool lend = true;       // the main pipeline may take the other phase's tiles when it finds none
  bool resident = false;  // the resident pipeline may claim decode tiles
  bool park = false;      // a running prefill tile is parked at a k-block check when decode comes
  bool preempt = true;    // SharingPolicy::preemption_enabled
  bool abort = false;     // leave
  // Of prefill loads while this cluster's resident pipeline has tiles: without, it would only cost.
  PausePolicy pause = PausePolicy::kNever;
};

struct PreemptWord {
  uint32_t epoch = 0;
  Decision decision;
};

EXPERTPLEX_HOST_DEVICE constexpr uint32_t pack_decision(const Decision& d) {
  return static_cast<uint32_t>(d.main_phase) | uint32_t{d.lend} << 1 | uint32_t{d.resident} << 2 |
         uint32_t{d.park} << 3 | uint32_t{d.preempt} << 4 | uint32_t{d.abort} << 5 |
         static_cast<uint32_t>(d.pause) << 6;
}

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_preempt_word(const PreemptWord& word) {
  return uint64_t{word.epoch} << 32 | pack_decision(word.decision);
}

EXPERTPLEX_HOST_DEVICE constexpr Decision unpack_decision(uint32_t bits) {
  Decision d;
  d.main_phase = static_cast<Phase>(bits & 1);
  d.lend = bits >> 1 & 1;
  d.resident = bits >> 2 & 1;
  d.park = bits >> 3 & 1;
  d.preempt = bits >> 4 & 1;
  d.abort = bits >> 5 & 1;
  d.pause = static_cast<PausePolicy>(bits >> 6 & 3);
  return d;
}

EXPERTPLEX_HOST_DEVICE constexpr PreemptWord unpack_preempt_word(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), unpack_decision(static_cast<uint32_t>(word))};
}

}  // namespace expertplex::apk
