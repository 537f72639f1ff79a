// TileWork: what the roles of a pipeline have to know of one tile: where it is loaded from and
// where it goes. The scheduler warp makes it from a claimed tile and hands it to producer and math
// warps of the pipeline through a queue in shared memory; nobody else decides anything.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "apk/tile.h"

namespace expertplex::cuda {

// What a scheduler warp reads of a binding, in one round of loads.
struct alignas(16) BindingHead {
  const float* weight_scales = nullptr;
  __nv_bfloat16* output = nullptr;
  // Where rows lie. Masked: expert e from row e * masked_capacity on. Else block_first_row says the
  // first row of each row block, by its dense index: packed and paged rows.
  const uint32_t* block_first_row = nullptr;
  uint32_t masked_capacity = 0;
  uint32_t output_stride = 0;
  uint32_t columns = 0;  // N, a multiple of 128
  uint32_t k_tiles = 0;  // K / 128
};

// One grouped GEMM: D[r, n] = sum over k of A[r, k] W[e, n, k], for the rows r of expert e.
// Lives in global memory, written before the kernel starts; found by (phase, slot, layer).
//   rows     FP8 e4m3 [row capacity][K], row-major; row scales fp32 [row capacity][scale_stride]
//   weights  FP8 e4m3 [experts * N][K]; weight scales fp32 [experts * N / 128][K / 128]
//   output   BF16 [row capacity][output_stride]
struct alignas(128) GemmBinding {
  // Boxes are those of the pipeline that runs it: rows of K 128 bytes, scales of 16.
  CUtensorMap rows_map;
  CUtensorMap row_scales_map;
  CUtensorMap weights_map;
  BindingHead head;
};

struct alignas(16) TileWork {
  const GemmBinding* binding = nullptr;
  const float* weight_scales =
      nullptr;                      // of the tile's first 128 weight rows; the next 128: + k_tiles
  __nv_bfloat16* output = nullptr;  // at the tile's first row and column
  uint32_t output_stride = 0;
  uint32_t row_count = 0;  // rows of the tile that exist
  uint32_t first_row = 0;  // in rows and row scales
  uint32_t first_weight_row = 0;
  uint32_t k_tiles = 0;
  uint32_t flags = 0;        // kWork*
  apk::TileDescriptor tile;  // for the commit
};

constexpr uint32_t kWorkEnd = 1;         // no tile: leave
constexpr uint32_t kWorkSwapped = 2;     // main pipeline: decode, the operands change places
constexpr uint32_t kWorkParks = 8;       // kParkSlot's: put the accumulators by
constexpr uint32_t kWorkSecondWave = 4;  // rows beyond the first half of the tile exist

}  // namespace expertplex::cuda
