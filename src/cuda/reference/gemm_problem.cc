#include "cuda/reference/gemm_problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cuda/reference/gemm_reference.h"

namespace expertplex::cuda {

bool have_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  cudaDeviceProp properties;
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major == 9;
}

Result<GemmProblem> GemmProblem::make(const GemmShape& shape, std::vector<uint32_t> rows_per_expert,
                                      RowPlacement placement, uint32_t seed, GemmData data) {
  GemmProblem problem;
  problem.shape = shape;
  problem.rows_per_expert = std::move(rows_per_expert);
  problem.placement = placement;
  problem.row_capacity = placement.masked_capacity > 0
                             ? uint64_t{placement.masked_capacity} * shape.experts
                             : std::accumulate(problem.rows_per_expert.begin(),
                                               problem.rows_per_expert.end(), uint64_t{0});
  problem.row_capacity = std::max<uint64_t>(problem.row_capacity, 1);
  problem.output_stride = shape.columns;
  const uint64_t weight_rows = uint64_t{shape.experts} * shape.columns;
  EXPERTPLEX_ASSIGN(problem.rows, DeviceBuffer<uint8_t>::allocate(problem.row_capacity * shape.k));
  EXPERTPLEX_ASSIGN(problem.weights, DeviceBuffer<uint8_t>::allocate(weight_rows * shape.k));
  EXPERTPLEX_ASSIGN(problem.row_scales, DeviceBuffer<float>::allocate(
                                            problem.row_capacity * row_scale_stride_of(shape.k)));
  EXPERTPLEX_ASSIGN(problem.weight_scales,
                    DeviceBuffer<float>::allocate(weight_rows / 128 * shape.k_tiles()));
  EXPERTPLEX_ASSIGN(problem.output,
                    DeviceBuffer<__nv_bfloat16>::allocate(problem.row_capacity * shape.columns));
  const uint64_t s = uint64_t{seed} << 40;
  const bool promotion = data == GemmData::kPromotion;
  EXPERTPLEX_CUDA_TRY(fill_random_fp8(problem.rows.data(), problem.rows.size(), s, promotion));
  EXPERTPLEX_CUDA_TRY(
      fill_random_fp8(problem.weights.data(), problem.weights.size(), s + (1ull << 38), promotion));
  EXPERTPLEX_CUDA_TRY(
      fill_random_scales(problem.row_scales.data(), problem.row_scales.size(), s + (2ull << 38)));
  EXPERTPLEX_CUDA_TRY(fill_random_scales(problem.weight_scales.data(), problem.weight_scales.size(),
                                         s + (3ull << 38)));
  EXPERTPLEX_TRY(problem.poison());
  return problem;
}

GemmOperands GemmProblem::operands() const {
  GemmOperands o;
  o.shape = shape;
  o.row_capacity = row_capacity;
  o.rows = rows.data();
  o.row_scales = row_scales.data();
  o.row_scale_stride = row_scale_stride_of(shape.k);
  o.weights = weights.data();
  o.weight_scales = weight_scales.data();
  o.output = output.data();
  o.output_stride = output_stride;
  o.masked_capacity = placement.masked_capacity;
  return o;
}

Result<void> GemmProblem::poison() {
  return cuda_result(fill_with_poison(reinterpret_cast<uint16_t*>(output.data()), output.size()),
                     "poison");
}

Result<std::vector<uint16_t>> GemmProblem::read_output() const {
  std::vector<uint16_t> host(output.size());
  EXPERTPLEX_CUDA_TRY(cudaMemcpy(host.data(), output.data(), host.size() * sizeof(uint16_t),
                                 cudaMemcpyDeviceToHost));
  return host;
}

Result<GemmErrors> compare_with_reference(const GemmProblem& problem, uint32_t row_step) {
  std::vector<int32_t> row_expert(problem.row_capacity, -1);
  uint64_t first = 0;
  for (uint32_t e = 0; e < problem.shape.experts; ++e) {
    if (problem.placement.masked_capacity > 0)
      first = uint64_t{e} * problem.placement.masked_capacity;
    for (uint32_t r = 0; r < problem.rows_per_expert[e]; ++r) row_expert[first++] = int32_t(e);
  }
  const uint32_t columns = problem.shape.columns;
  EXPERTPLEX_ASSIGN(const auto experts, DeviceBuffer<int32_t>::copy_of(row_expert));
  const std::vector<ReferenceTotals> zero(1);
  EXPERTPLEX_ASSIGN(const auto totals, DeviceBuffer<ReferenceTotals>::copy_of(zero));
  EXPERTPLEX_ASSIGN(const auto reference,
                    DeviceBuffer<float>::allocate(problem.row_capacity * columns));
  ReferenceGemm gemm;
  gemm.rows = problem.rows.data();
  gemm.row_scales = problem.row_scales.data();
  gemm.row_scale_stride = row_scale_stride_of(problem.shape.k);
  gemm.weights = problem.weights.data();
  gemm.weight_scales = problem.weight_scales.data();
  gemm.output = reinterpret_cast<const uint16_t*>(problem.output.data());
  gemm.output_stride = problem.output_stride;
  gemm.row_count = static_cast<uint32_t>(problem.row_capacity);
  gemm.columns = columns;
  gemm.k = problem.shape.k;
  gemm.row_expert = experts.data();
  gemm.row_step = row_step;
  EXPERTPLEX_CUDA_TRY(compute_reference(gemm, totals.data(), reference.data()));
  ReferenceTotals sums;
  EXPERTPLEX_CUDA_TRY(cudaMemcpy(&sums, totals.data(), sizeof sums, cudaMemcpyDeviceToHost));
  uint64_t elements = 0;
  for (const uint32_t r : problem.rows_per_expert) elements += uint64_t{r} * columns;
  GemmErrors errors;
  errors.unwritten = sums.unwritten;
  errors.overwritten = sums.overwritten;
  if (elements == 0) return errors;
  errors.relative_l2 = std::sqrt(sums.squared_error / sums.squared_reference);
  const std::vector<unsigned int> none(1);
  EXPERTPLEX_ASSIGN(const auto worst_bits, DeviceBuffer<unsigned int>::copy_of(none));
  const double rms = std::sqrt(sums.squared_reference / static_cast<double>(elements));
  EXPERTPLEX_CUDA_TRY(
      find_worst(gemm, reference.data(), static_cast<float>(rms), worst_bits.data()));
  unsigned int bits = 0;
  EXPERTPLEX_CUDA_TRY(cudaMemcpy(&bits, worst_bits.data(), sizeof bits, cudaMemcpyDeviceToHost));
  errors.worst = std::bit_cast<float>(bits);
  return errors;
}

}  // namespace expertplex::cuda
