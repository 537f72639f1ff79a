// The shape of one compiled GEMM kernel: tiles, ring depths, registers. Plain numbers: the kernel
// is instantiated on one as a template argument; kernels/gemm_launch.h lists the compiled ones.
//
// A CTA has four warpgroups: one of producers and the scheduler warp, two of math for the *main*
// pipeline, one of math for the *resident* decode pipeline (absent where resident.stages == 0).
//
// Main pipeline, a stage of 256 + 128 rows of 128 bytes, used in two ways:
//   prefill: 256 activation rows x 128 weight rows (output columns);
//   decode:  128 activation rows x 256 weight rows, operands in each other's place.
// Resident pipeline: 128 weight rows x 16 activation rows, operands swapped (weights are M).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace expertplex::cuda {

constexpr uint32_t kTileK = 128;         // k elements of a stage: one swizzle row of FP8, one scale
constexpr uint32_t kMainWideRows = 256;  // rows of the wide operand of a main stage
constexpr uint32_t kMainNarrowRows = 128;
constexpr uint32_t kResidentWeightRows = 128;
constexpr uint32_t kResidentRows = 16;
constexpr uint32_t kScaleGroup = 4;  // k tiles whose row scales come with one load (16 bytes a row)

struct GemmConfig {
  uint32_t main_stages = 3;
  uint32_t resident_stages = 4;
  uint32_t producer_registers = 48;
  uint32_t math_registers = 208;
  uint32_t resident_registers = 48;

  EXPERTPLEX_HOST_DEVICE constexpr bool has_resident() const { return resident_stages > 0; }
  EXPERTPLEX_HOST_DEVICE constexpr uint32_t threads() const { return has_resident() ? 512 : 384; }
  // Registers of all warpgroups, and those that the CTA starts with, from which they take: what one
  // takes before another has given it back it waits for, more than there is for ever.
  EXPERTPLEX_HOST_DEVICE constexpr uint32_t registers() const {
    return 128 *
           (producer_registers + 2 * math_registers + (has_resident() ? resident_registers : 0));
  }
  EXPERTPLEX_HOST_DEVICE constexpr uint32_t launch_registers() const {
    return 65536 / threads() / 8 * 8 * threads();
  }
  friend EXPERTPLEX_HOST_DEVICE constexpr bool operator==(const GemmConfig&,
                                                          const GemmConfig&) = default;
};

}  // namespace expertplex::cuda
