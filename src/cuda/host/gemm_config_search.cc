#include "cuda/host/gemm_config_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "apk/operation.h"
#include "cuda/device/tile_work.h"

namespace expertplex::cuda {
namespace {

using apk::Phase;
using apk::PipelineRole;

// Fitted to the 72 back-to-back medians of results/h200/gemm.txt by a random search for the least
// squared logarithm of predicted / measured, with a penalty for pipelines in the wrong order, then
// rounded. Two were not fitted, marked "assumed": there memory was always what took the time, so
// the rows say only that it is no slower. Rates in bytes per us.
constexpr double kReadRate = 4.16e6;            // HBM to all SMs (a copy reaches 4.27e6)
constexpr double kSmReadRate = 0.037e6;         // HBM to one SM, when few are active
constexpr double kStartMicroseconds = 5.0;      // launch, first loads, drain
constexpr double kMainStartMicroseconds = 2.6;  // more of it in the main pipeline: larger stages
// Prefill with the resident pipeline's memory and registers given to the main one.
constexpr double kPrefillWithoutResident = 0.98;
// Tensor time when the power limit has lowered the clock: the two GLM gate_up rows of 8 x 16,384,
// 18 launches of 5 ms. Part of that run still had the full clock.
constexpr double kSustainedTensor = 1.1;

struct OrientationModel {
  double half_us;  // per k tile, where no rows lie beyond the first half of the tile
  double full_us;  // per k tile, else
  double tile_us;  // of start and end of a tile, what the next one does not hide
};
constexpr OrientationModel kPrefillModel{0.71, 0.78, 1.2};
constexpr OrientationModel kDecodeModel{0.71 /* assumed: as prefill */, 1.01, 0.7};
constexpr OrientationModel kResidentModel{0.44 /* assumed: one SM's read rate */, 0.44, 0.0};

const OrientationModel& model_of(const GemmCandidate& c) {
  if (c.pipeline == PipelineRole::kResident) return kResidentModel;
  return c.phase == Phase::kPrefill ? kPrefillModel : kDecodeModel;
}

uint64_t align_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// As device/shared_layout.h, which host code cannot include.
constexpr uint64_t kStampBytes = 16;
constexpr uint64_t kBarrierBytes = 8;
constexpr uint64_t kWorks = 7 + 4;           // work slots of the main and the resident pipeline
constexpr uint64_t kWorkBarriers = 19 + 12;  // full, done and empty of them; none for kParkSlot
constexpr uint64_t kWordBytes = 3 * 16 + 4 * (80 + 16) + 8 + 16 * 4;  // control to left_waiting
constexpr uint64_t kSharedLimit = 232448;

// What setmaxnreg can name.
constexpr uint32_t kFewestRegisters = 24, kMostRegisters = 240, kRegisterStep = 8;
constexpr uint32_t kRegisterFile = 65536;
constexpr uint32_t kWarpgroup = 128;

Result<void> check_registers(const GemmConfig& config) {
  const std::pair<const char*, uint32_t> roles[] = {{"producer", config.producer_registers},
                                                    {"math", config.math_registers},
                                                    {"resident", config.resident_registers}};
  for (const auto& [role, count] : roles) {
    if (role == roles[2].first && !config.has_resident()) continue;
    if (count < kFewestRegisters || count > kMostRegisters || count % kRegisterStep != 0) {
      return make_error(ErrorCode::kUnsupported,
                        "{} registers {}: expected a multiple of {} from {} to {}", role, count,
                        kRegisterStep, kFewestRegisters, kMostRegisters);
    }
  }
  const uint32_t wanted = kWarpgroup * (config.producer_registers + 2 * config.math_registers +
                                        (config.has_resident() ? config.resident_registers : 0));
  // setmaxnreg moves registers between warpgroups; a CTA has those that it was launched with.
  const uint32_t at_launch =
      kRegisterFile / config.threads() / kRegisterStep * kRegisterStep * config.threads();
  if (wanted > at_launch) {
    return make_error(ErrorCode::kUnsupported,
                      "{} registers in all: a CTA of {} threads has {}; lower math_registers",
                      wanted, config.threads(), at_launch);
  }
  return {};
}

// The tiles of a workload, counted.
struct TileCounts {
  uint64_t row_tiles = 0;
  uint64_t full_row_tiles = 0;  // with rows beyond the first half
  uint64_t rows = 0;
  uint64_t live_experts = 0;  // with rows: others cost nothing
};

TileCounts count_tiles(const GemmWorkload& workload, const GemmTiling& tiling) {
  TileCounts counts;
  for (const uint32_t rows : workload.rows_per_expert) {
    const uint32_t rest = rows % tiling.rows;
    counts.row_tiles += apk::ceil_div(rows, tiling.rows);
    counts.full_row_tiles += rows / tiling.rows + (rest > tiling.rows / 2 ? 1 : 0);
    counts.rows += rows;
    counts.live_experts += rows > 0 ? 1 : 0;
  }
  return counts;
}

Result<void> check_workload(const GemmWorkload& workload) {
  const GemmShape& shape = workload.shape;
  if (shape.experts == 0 || workload.rows_per_expert.size() != shape.experts) {
    return make_error(ErrorCode::kInvalidArgument,
                      "grouped GEMM plan: {} row counts for {} experts; give one count per expert",
                      workload.rows_per_expert.size(), shape.experts);
  }
  if (workload.sms == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "grouped GEMM plan: 0 SMs; expected how many CTAs run, one per SM");
  }
  return {};
}

}  // namespace

uint64_t gemm_shared_bytes(const GemmConfig& config) {
  const uint64_t main = config.main_stages;
  const uint64_t resident = config.has_resident() ? config.resident_stages : 1;
  const uint64_t weight_bytes = config.has_resident() ? kResidentWeightRows * kTileK : 1;
  const uint64_t row_bytes = config.has_resident() ? kResidentRows * kTileK : 1;
  uint64_t bytes = main * (kMainWideRows + kMainNarrowRows) * kTileK;
  bytes = align_up(bytes + resident * weight_bytes, 1024);
  bytes = align_up(bytes + resident * row_bytes, 128);
  const uint64_t scale_bytes = kScaleGroup * sizeof(float);
  bytes += (std::max<uint64_t>(main, 1) - 1) * kMainWideRows * scale_bytes;
  bytes += resident * kResidentRows * scale_bytes;
  bytes += (main + resident) * kStampBytes;
  bytes += kWorks * sizeof(TileWork);
  bytes += 2 * (main + resident) * kBarrierBytes;
  bytes += kWorkBarriers * kBarrierBytes;
  bytes = align_up(bytes, 16) + kWordBytes;
  return align_up(bytes, 1024);
}

Result<void> check_gemm_config(const GemmConfig& config) {
  // Row scales are kept in main_stages - 1 slots, and a tile's last group may still be read when
  // the next tile's first one is loaded.
  if (config.main_stages < 3) {
    return make_error(ErrorCode::kUnsupported, "{} main stages: expected 3 or more",
                      config.main_stages);
  }
  const uint64_t shared = gemm_shared_bytes(config);
  if (shared > kSharedLimit) {
    return make_error(ErrorCode::kUnsupported,
                      "{} bytes of shared memory: a CTA can have {}; take fewer stages", shared,
                      kSharedLimit);
  }
  return check_registers(config);
}

std::vector<GemmCandidate> enumerate_gemm_candidates(std::span<const GemmConfig> configs) {
  std::vector<GemmCandidate> candidates;
  for (const GemmConfig& config : configs) {
    candidates.push_back({config, Phase::kPrefill, PipelineRole::kMain});
    candidates.push_back({config, Phase::kDecode, PipelineRole::kMain});
    candidates.push_back({config, Phase::kDecode, PipelineRole::kResident});
  }
  return candidates;
}

Result<void> check_gemm_candidate(const GemmCandidate& candidate, const GemmWorkload& workload) {
  EXPERTPLEX_TRY(check_gemm_config(candidate.config));
  if (candidate.pipeline == PipelineRole::kResident && !candidate.config.has_resident()) {
    return make_error(ErrorCode::kUnsupported, "the configuration has no resident pipeline");
  }
  if (workload.phase.has_value() && *workload.phase != candidate.phase) {
    return make_error(ErrorCode::kUnsupported, "its tiles are {}'s: the operation is {}",
                      apk::phase_name(candidate.phase), apk::phase_name(*workload.phase));
  }
  EXPERTPLEX_TRY(check_gemm_shape(workload.shape, candidate.phase, candidate.pipeline));
  const GemmTiling tiling = gemm_tiling(candidate.phase, candidate.pipeline);
  const uint64_t row_tiles = count_tiles(workload, tiling).row_tiles;
  apk::OperationTemplate operation;
  operation.experts = workload.shape.experts;
  operation.intermediate = workload.shape.columns;
  operation.gate_up = {tiling.rows, tiling.columns};
  // Beyond 32 bits it is too many all the same; without rows the capacity is still 1.
  operation.max_row_blocks = static_cast<uint32_t>(std::clamp<uint64_t>(row_tiles, 1, UINT32_MAX));
  const apk::OperationFault fault = apk::check_template(operation);
  if (fault != apk::OperationFault::kNone) {
    return make_error(ErrorCode::kUnsupported,
                      "{} row tiles of {} experts, of at most {}: {}; split the operation",
                      row_tiles, workload.shape.experts, UINT16_MAX,
                      apk::operation_fault_name(fault));
  }
  return {};
}

GemmEstimate estimate_gemm(const GemmCandidate& candidate, const GemmWorkload& workload) {
  const GemmShape& shape = workload.shape;
  const GemmTiling tiling = gemm_tiling(candidate.phase, candidate.pipeline);
  const OrientationModel& model = model_of(candidate);
  const TileCounts counts = count_tiles(workload, tiling);
  const bool main = candidate.pipeline == PipelineRole::kMain;
  double start_us = kStartMicroseconds + (main ? kMainStartMicroseconds : 0);
  GemmEstimate estimate;
  estimate.tiles = counts.row_tiles * (shape.columns / tiling.columns);
  if (estimate.tiles > 0) {
    const double k_tiles = shape.k_tiles();
    const double full = static_cast<double>(counts.full_row_tiles) / double(counts.row_tiles);
    double tensor = full * model.full_us + (1 - full) * model.half_us;
    if (main && candidate.phase == Phase::kPrefill && !candidate.config.has_resident()) {
      tensor *= kPrefillWithoutResident;
    }
    if (workload.clocks == ClockRegime::kSustained) tensor *= kSustainedTensor;
    const double weights = double(counts.live_experts) * shape.columns * shape.k;
    const double rows = double(counts.rows) * (double(shape.k) + 2.0 * shape.columns);
    const double step_bytes = (weights + rows) / (double(estimate.tiles) * k_tiles);
    const auto memory = [&](double active) {
      return std::max(step_bytes * active / kReadRate, step_bytes / kSmReadRate);
    };
    const auto wave = [&](double active) {
      return k_tiles * std::max(tensor, memory(active)) + model.tile_us;
    };
    const uint64_t full_waves = estimate.tiles / workload.sms;
    const uint64_t rest = estimate.tiles % workload.sms;
    estimate.waves = full_waves + (rest > 0 ? 1 : 0);
    estimate.tensor_us = tensor;
    estimate.memory_us = memory(double(std::min<uint64_t>(estimate.tiles, workload.sms)));
    start_us += double(full_waves) * wave(workload.sms) + (rest > 0 ? wave(double(rest)) : 0);
  }
  estimate.nanoseconds = static_cast<uint64_t>(std::llround(start_us * 1000));
  return estimate;
}

std::strong_ordering compare_gemm_plans(const GemmPlan& a, const GemmPlan& b) {
  // Where more is better, the operands change places.
  const auto key = [](const GemmPlan& smaller, const GemmPlan& larger) {
    const GemmCandidate& l = larger.candidate;
    return std::tuple(smaller.estimate.nanoseconds, l.pipeline, l.phase, l.config.resident_stages,
                      l.config.main_stages, l.config.math_registers, l.config.resident_registers,
                      l.config.producer_registers);
  };
  return key(a, b) <=> key(b, a);
}

Result<GemmPlans> search_gemm_plans(const GemmWorkload& workload,
                                    std::span<const GemmConfig> configs) {
  EXPERTPLEX_TRY(check_workload(workload));
  GemmPlans plans;
  for (const GemmCandidate& candidate : enumerate_gemm_candidates(configs)) {
    if (const auto legal = check_gemm_candidate(candidate, workload); !legal) {
      plans.rejected.push_back({candidate, legal.error().message});
    } else {
      plans.ranked.push_back({candidate, estimate_gemm(candidate, workload)});
    }
  }
  std::sort(plans.ranked.begin(), plans.ranked.end(),
            [](const GemmPlan& a, const GemmPlan& b) { return compare_gemm_plans(a, b) < 0; });
  if (!plans.ranked.empty()) return plans;
  std::string reasons;
  for (const RejectedGemmPlan& plan : plans.rejected) reasons += "; " + describe(plan);
  return make_error(ErrorCode::kUnsupported,
                    "grouped GEMM plan: N = {}, K = {}, {} experts: expected a legal one of {} "
                    "candidates, found none{}",
                    workload.shape.columns, workload.shape.k, workload.shape.experts,
                    plans.rejected.size(), reasons);
}

std::string describe(const GemmCandidate& candidate) {
  const GemmTiling tiling = gemm_tiling(candidate.phase, candidate.pipeline);
  return fmt::format(
      "{} {}x{}, stages {}+{}", candidate.pipeline == PipelineRole::kResident ? "resident" : "main",
      tiling.rows, tiling.columns, candidate.config.main_stages, candidate.config.resident_stages);
}

std::string describe(const GemmPlan& plan) {
  const GemmEstimate& e = plan.estimate;
  return fmt::format(
      "{}, {} bytes shared: {:.1f} us, {} tiles in {} wave{}, memory {:.2f} us and tensor {:.2f} "
      "us "
      "a "
      "k tile",
      describe(plan.candidate), gemm_shared_bytes(plan.candidate.config),
      double(e.nanoseconds) * 1e-3, e.tiles, e.waves, e.waves == 1 ? "" : "s", e.memory_us,
      e.tensor_us);
}

std::string describe(const RejectedGemmPlan& plan) {
  return fmt::format("{}: {}", describe(plan.candidate), plan.reason);
}

}  // namespace expertplex::cuda
