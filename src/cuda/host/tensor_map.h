// TMA descriptors for row-major matrices in device memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/result.h"

namespace expertplex::cuda {

struct MatrixView {
  const void* data = nullptr;  // device, 16-byte aligned
  uint64_t rows = 0;
  uint64_t columns = 0;           // elements
  uint64_t row_stride_bytes = 0;  // a multiple of 16
};

// FP8 (as bytes), boxes of `box_rows` rows x 128 bytes, 128-byte swizzle: what wgmma reads.
Result<CUtensorMap> make_fp8_map(const MatrixView& matrix, uint32_t box_rows);
// fp32, boxes of `box_rows` rows x `box_columns` values, not swizzled.
Result<CUtensorMap> make_float_map(const MatrixView& matrix, uint32_t box_rows,
                                   uint32_t box_columns);

}  // namespace expertplex::cuda
