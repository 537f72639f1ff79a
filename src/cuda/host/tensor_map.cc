#include "cuda/host/tensor_map.h"

#include <cuda_runtime_api.h>

#include "cuda/host/cuda_result.h"

namespace expertplex::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver is loaded at run time (one binary with and without a GPU), so its functions are looked
// up, not linked.
Result<EncodeTiled> encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  EXPERTPLEX_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return make_error(
        ErrorCode::kUnsupported,
        "cuTensorMapEncodeTiled: the driver does not have it; CUDA 12 or newer needed");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

Result<CUtensorMap> make_map(const MatrixView& matrix, CUtensorMapDataType type,
                             CUtensorMapSwizzle swizzle, uint32_t box_rows, uint32_t box_columns) {
  EXPERTPLEX_ASSIGN(const EncodeTiled encode, encode_tiled());
  const cuuint64_t sizes[2] = {matrix.columns, matrix.rows};
  const cuuint64_t strides[1] = {matrix.row_stride_bytes};
  const cuuint32_t box[2] = {box_columns, box_rows};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 2, const_cast<void*>(matrix.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return make_error(
        ErrorCode::kInternal,
        "TMA descriptor of a {} x {} matrix (row stride {} bytes, box {} x {}): error {}",
        matrix.rows, matrix.columns, matrix.row_stride_bytes, box_rows, box_columns,
        static_cast<int>(result));
  }
  return map;
}

}  // namespace

Result<CUtensorMap> make_fp8_map(const MatrixView& matrix, uint32_t box_rows) {
  return make_map(matrix, CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_128B, box_rows, 128);
}

Result<CUtensorMap> make_float_map(const MatrixView& matrix, uint32_t box_rows,
                                   uint32_t box_columns) {
  return make_map(matrix, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_NONE, box_rows,
                  box_columns);
}

}  // namespace expertplex::cuda
