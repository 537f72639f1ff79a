// A view of a tensor in a checkpoint: element type, shape, and where its bytes are mapped.
// Row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace expertplex {

enum class DataType { kF32, kBf16, kF16, kFp8E4m3 };

constexpr size_t data_type_bytes(DataType type) {
  switch (type) {
    case DataType::kF32:
      return 4;
    case DataType::kBf16:
    case DataType::kF16:
      return 2;
    case DataType::kFp8E4m3:
      return 1;
  }
  return 0;
}

const char* data_type_name(DataType type);

// y = W x with W stored [out_features, in_features]. FP8 weights carry scales
// [ceil(out / 128), ceil(in / 128)]: value = e4m3 * scale. Points into the mapped checkpoint (in
// place, unaligned beyond the element size) or into memory that the ModelWeights own.
struct LinearWeight {
  DataType type = DataType::kF32;
  int out_features = 0;
  int in_features = 0;
  const void* data = nullptr;
  const float* scales = nullptr;  // null unless FP8
};

}  // namespace expertplex
