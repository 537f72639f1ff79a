// The two phases of inference. Prefill wants throughput, decode wants latency.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace expertplex::apk {

enum class Phase : uint8_t { kPrefill = 0, kDecode = 1 };

constexpr uint32_t kPhaseCount = 2;

EXPERTPLEX_HOST_DEVICE constexpr uint32_t phase_index(Phase phase) {
  return static_cast<uint32_t>(phase);
}

EXPERTPLEX_HOST_DEVICE constexpr Phase other_phase(Phase phase) {
  return phase == Phase::kPrefill ? Phase::kDecode : Phase::kPrefill;
}

constexpr const char* phase_name(Phase phase) {
  return phase == Phase::kPrefill ? "prefill" : "decode";
}

}  // namespace expertplex::apk
