// MoE footprint (paper section 6.2; DESIGN section 2): MoE time follows executed tiles, not tokens.
//   x_moe = sum over experts e with m_e > 0 of ceil(m_e / M_t)
// with m_e the rows of expert e and M_t the rows of a tile. Unit: row tiles.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace expertplex::apk {

EXPERTPLEX_HOST_DEVICE constexpr uint32_t ceil_div(uint32_t x, uint32_t y) {
  return x / y + (x % y != 0);
}

// REQUIRES: tile_rows > 0; the sum fits 32 bits.
EXPERTPLEX_HOST_DEVICE constexpr uint32_t moe_footprint(const uint32_t* rows_per_expert,
                                                        uint32_t experts, uint32_t tile_rows) {
  uint32_t tiles = 0;
  for (uint32_t e = 0; e < experts; ++e) tiles += ceil_div(rows_per_expert[e], tile_rows);
  return tiles;
}

}  // namespace expertplex::apk
