#include "cuda/host/grouped_gemm.h"

#include "apk/host_memory.h"
#include "apk/tile_order.h"

namespace expertplex::cuda {
namespace {

// Row tiles walked together, so that their activations stay in L2 while the weight columns pass.
constexpr uint32_t kRowGroup = 8;

template <typename T>
Result<void> upload(DeviceBuffer<T>* buffer, std::span<const T> host) {
  EXPERTPLEX_ASSIGN(*buffer, DeviceBuffer<T>::copy_of(host));
  return {};
}

}  // namespace

Result<GemmOperation> GemmOperation::make(GemmOperands operands, apk::Phase phase,
                                          apk::PipelineRole pipeline,
                                          std::span<const uint32_t> rows_per_expert,
                                          RowPlacement placement) {
  const GemmTiling tiling = gemm_tiling(phase, pipeline);
  const uint32_t experts = operands.shape.experts;
  EXPERTPLEX_CHECK(rows_per_expert.size() == experts, "{} counts for {} experts",
                   rows_per_expert.size(), experts);
  std::vector<uint32_t> first_rows;
  uint64_t expert_first = 0;
  for (uint32_t e = 0; e < experts; ++e) {
    const uint32_t rows = rows_per_expert[e];
    if (placement.masked_capacity > 0) {
      EXPERTPLEX_CHECK(rows <= placement.masked_capacity, "{} rows in expert {}", rows, e);
      expert_first = uint64_t{e} * placement.masked_capacity;
    }
    EXPERTPLEX_CHECK(expert_first + rows <= operands.row_capacity, "rows end at {}",
                     expert_first + rows);
    for (uint32_t r = 0; r < rows; r += tiling.rows) {
      first_rows.push_back(static_cast<uint32_t>(expert_first + r));
    }
    if (placement.masked_capacity == 0) expert_first += rows;
  }

  apk::OperationTemplate shape;
  shape.phase = phase;
  shape.pipeline = pipeline;
  shape.experts = experts;
  shape.intermediate = operands.shape.columns;
  shape.gate_up = {tiling.rows, tiling.columns};
  shape.down = {tiling.rows, tiling.columns};
  shape.row_group = kRowGroup;
  shape.max_row_blocks = static_cast<uint32_t>(first_rows.size());
  apk::OperationRequest request;
  request.epoch = 1;
  request.rows_per_expert = rows_per_expert.data();
  apk::OperationFields fields;
  std::vector<apk::RowBlock> blocks(first_rows.size() + 1);
  const apk::OperationFault fault =
      apk::instantiate_operation<apk::HostMemory>(shape, request, &fields, blocks.data());
  EXPERTPLEX_CHECK(fault == apk::OperationFault::kNone, "{}", apk::operation_fault_name(fault));

  GemmOperation operation;
  operation.pipeline_ = pipeline;
  operation.tiles_ = fields.gate_up_tiles;
  if (first_rows.empty()) first_rows.push_back(0);
  EXPERTPLEX_TRY(upload<uint32_t>(&operation.first_rows_, first_rows));
  operands.block_first_row = operation.first_rows_.data();
  EXPERTPLEX_ASSIGN(const GemmBinding binding, make_gemm_binding(operands, phase, pipeline));
  EXPERTPLEX_TRY(upload<GemmBinding>(&operation.binding_, {&binding, 1}));
  EXPERTPLEX_TRY(upload<apk::OperationTemplate>(&operation.shape_, {&shape, 1}));
  EXPERTPLEX_TRY(upload<apk::OperationFields>(&operation.fields_, {&fields, 1}));
  EXPERTPLEX_TRY(upload<apk::RowBlock>(&operation.blocks_, blocks));
  operation.operation_ = {operation.binding_.data(), operation.shape_.data(),
                          operation.fields_.data(), operation.blocks_.data()};
  return operation;
}

Result<void> launch_grouped_gemm(const GemmConfig& config, const GemmOperation* main,
                                 const GemmOperation* resident, uint32_t ctas,
                                 cudaStream_t stream) {
  EXPERTPLEX_CHECK(resident == nullptr || config.has_resident(), "no resident pipeline in it");
  StaticSourceParameters parameters;
  if (main != nullptr) parameters.main = main->on_device();
  if (resident != nullptr) parameters.resident = resident->on_device();
  return cuda_result(launch_gemm_kernel(config, parameters, ctas, stream), "GEMM kernel launch");
}

}  // namespace expertplex::cuda
