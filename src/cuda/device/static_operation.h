// One operation of one GEMM, instantiated on the host before an ordinary launch. Device pointers.
#pragma once

#include <cstdint>

#include "apk/operation.h"
#include "cuda/device/tile_work.h"

namespace expertplex::cuda {

struct StaticOperation {
  const GemmBinding* binding = nullptr;  // null: nothing for this pipeline
  const apk::OperationTemplate* shape = nullptr;
  const apk::OperationFields* fields = nullptr;
  const apk::RowBlock* blocks = nullptr;
};

struct StaticSourceParameters {
  StaticOperation main, resident;
};

}  // namespace expertplex::cuda
