// Which compiled kernel and which pipeline should run a grouped GEMM: every candidate is
// enumerated, checked, scored by a predicted time and compared. Plain host arithmetic: no GPU is
// needed or asked.
//
// Candidates are the configurations handed in (compiled_gemm_configs()) times the three ways to cut
// a GEMM: main pipeline in prefill orientation (256 rows x 128 columns), main pipeline in decode
// orientation (128 x 256), resident pipeline (16 x 128).
//
// The model. CTA c computes the tiles c, c + SMs, ...: waves of one tile per SM, the last one with
// fewer. A wave takes, in us,
//
//   k tiles * max(tensor, memory) + tile,   memory = max(B * active SMs / read rate, B / SM rate)
//
// with B the bytes of HBM per tile and k tile: weights of experts that have rows, rows, outputs,
// each counted once. A launch adds a fixed start. Constants and where they come from: the .cc.
//
// What it is worth. Fitted to the back-to-back medians of results/h200/gemm.txt (one run on one
// H200, launch included), and compared with the same 72 rows: median error 2.5 %, worst 10 %; it
// ranks pipelines and orientations in the measured order wherever two were measured, which the fit
// was asked for (tests/cuda/gemm_config_search_test.cc). Fitted without one of the four shapes, its
// rows have median errors of 1.3 to 3.6 %, worst 11 %; of 24 orders two are then wrong, prefill
// against decode orientation on GLM down, 8 x 128 rows. Not measured, so extrapolated:
//   - resident and main pipeline between 16 and 128 rows per expert, so where they cross. The
//     resident step is taken as no faster than what was seen with every weight from HBM, though
//     further row tiles of an expert would find it in L2: the model may leave the resident
//     pipeline too early;
//   - the decode orientation above 128 rows, ragged counts (a wave is given the mean tile), other
//     numbers of SMs than 132, other GPUs;
//   - configurations alone or beside each other in the persistent kernel: claims, words and the
//     sharing of an SM by two pipelines are not in it;
//   - clocks: kSustained rests on two rows of about 0.1 s; a GPU that is busy for seconds is slower
//     still.
// Main orientations in decode with and without the resident pipeline are predicted equal: measured,
// they differ by up to 16 % in either direction, without a pattern.
//
// Thread rules: pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apk/policy.h"
#include "base/result.h"
#include "cuda/device/gemm_config.h"
#include "cuda/host/gemm_operands.h"

namespace expertplex::cuda {

enum class ClockRegime : uint8_t {
  kFull,       // bursts, and tens of ms of back-to-back work
  kSustained,  // longer prefill work: the power limit lowers the clock
};

struct GemmWorkload {
  GemmShape shape;
  std::vector<uint32_t> rows_per_expert;  // shape.experts entries
  // Of the operation; its main tiles have that phase's orientation, and the resident pipeline takes
  // decode only. None: a plain launch, free to choose.
  std::optional<apk::Phase> phase;
  uint32_t sms = 132;  // CTAs, one per SM
  ClockRegime clocks = ClockRegime::kFull;
};

// `phase` and `pipeline` are what GemmOperation::make takes: together they say how tiles are cut.
struct GemmCandidate {
  GemmConfig config;
  apk::Phase phase = apk::Phase::kPrefill;
  apk::PipelineRole pipeline = apk::PipelineRole::kMain;
};

struct GemmEstimate {
  uint64_t tiles = 0;
  uint64_t waves = 0;        // tiles of the CTA that has most
  double tensor_us = 0;      // per k tile
  double memory_us = 0;      // per k tile, in a full wave
  uint64_t nanoseconds = 0;  // of the launch; integer, so that ties are ties
};

struct GemmPlan {
  GemmCandidate candidate;
  GemmEstimate estimate;
};

struct RejectedGemmPlan {
  GemmCandidate candidate;
  std::string reason;
};

// Together all candidates. `ranked` is never empty; the first one is the choice.
struct GemmPlans {
  std::vector<GemmPlan> ranked;
  std::vector<RejectedGemmPlan> rejected;

  const GemmPlan& best() const { return ranked.front(); }
};

// Bytes of dynamic shared memory of a CTA: sizeof(SharedLayout<config>), which host code cannot
// compile.
uint64_t gemm_shared_bytes(const GemmConfig& config);

// Whether a CTA of this configuration can exist on sm_90: stages, shared memory, registers.
// kUnsupported, with expected and found.
Result<void> check_gemm_config(const GemmConfig& config);

// Every configuration in every orientation, legal or not, in a fixed order.
std::vector<GemmCandidate> enumerate_gemm_candidates(std::span<const GemmConfig> configs);

// Whether the candidate can run the workload. kUnsupported: what is in the way.
Result<void> check_gemm_candidate(const GemmCandidate& candidate, const GemmWorkload& workload);

// REQUIRES: check_gemm_candidate.
GemmEstimate estimate_gemm(const GemmCandidate& candidate, const GemmWorkload& workload);

// Less is better. A total order: time; then resident before main, decode before prefill
// orientation; then the configuration with more resident stages (it can run beside prefill), more
// main stages, more registers for math, resident math, producers. Equal only for equal candidates.
std::strong_ordering compare_gemm_plans(const GemmPlan& a, const GemmPlan& b);

// kInvalidArgument: the workload contradicts itself. kUnsupported: no candidate is legal; the
// message has every reason.
Result<GemmPlans> search_gemm_plans(const GemmWorkload& workload,
                                    std::span<const GemmConfig> configs);

// One line: "resident 16x128, stages 3+4, 231424 bytes shared: 53.8 us, 256 tiles in 2 waves,
// memory 0.52 us and tensor 0.44 us a k tile".
std::string describe(const GemmCandidate& candidate);
std::string describe(const GemmPlan& plan);
std::string describe(const RejectedGemmPlan& plan);

}  // namespace expertplex::cuda
