// An ordinary launch of the GEMM kernel on one operation: the same pipelines as the adaptive
// persistent kernel, fed by a static tile source. The contestant "plain launch" of the benches, and
// the simplest way to test the pipelines.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "apk/operation.h"
#include "base/result.h"
#include "cuda/host/device_buffer.h"
#include "cuda/host/gemm_operands.h"
#include "cuda/kernels/gemm_launch.h"

namespace expertplex::cuda {

// Where the rows of each expert start: packed (one after the other) or masked (expert e at
// e * capacity).
struct RowPlacement {
  uint32_t masked_capacity = 0;  // 0: packed
};

// The tiles of one operation on the device: what apk::instantiate_operation makes of the counts.
class GemmOperation {
 public:
  // `operands.block_first_row` is made here.
  static Result<GemmOperation> make(GemmOperands operands, apk::Phase phase,
                                    apk::PipelineRole pipeline,
                                    std::span<const uint32_t> rows_per_expert,
                                    RowPlacement placement);

  const StaticOperation& on_device() const { return operation_; }
  apk::PipelineRole pipeline() const { return pipeline_; }
  uint32_t tiles() const { return tiles_; }

 private:
  apk::PipelineRole pipeline_ = apk::PipelineRole::kMain;
  uint32_t tiles_ = 0;
  StaticOperation operation_;
  DeviceBuffer<uint32_t> first_rows_;
  DeviceBuffer<GemmBinding> binding_;
  DeviceBuffer<apk::OperationTemplate> shape_;
  DeviceBuffer<apk::OperationFields> fields_;
  DeviceBuffer<apk::RowBlock> blocks_;
};

// Asynchronous on `stream`. Either operation may be null.
Result<void> launch_grouped_gemm(const GemmConfig& config, const GemmOperation* main,
                                 const GemmOperation* resident, uint32_t ctas, cudaStream_t stream);

}  // namespace expertplex::cuda
