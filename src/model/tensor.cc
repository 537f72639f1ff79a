#include "model/tensor.h"

namespace expertplex {

const char* data_type_name(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "F32";
    case DataType::kBf16:
      return "BF16";
    case DataType::kF16:
      return "F16";
    case DataType::kFp8E4m3:
      return "F8_E4M3";
  }
  return "?";
}

}  // namespace expertplex
