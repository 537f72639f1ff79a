// The choice of configuration and pipeline: what is legal, and what the cost model is worth against
// the measured times. Needs no GPU.
#include "cuda/host/gemm_config_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuda/kernels/gemm_launch.h"
#include "cuda/measured_gemm_times.h"
#include "cuda/shared_layout_size.h"

namespace expertplex::cuda {
namespace {

using apk::Phase;
using apk::PipelineRole;

GemmWorkload workload_of(const GemmShape& shape, uint32_t rows, std::optional<Phase> phase = {}) {
  GemmWorkload workload;
  workload.shape = shape;
  workload.rows_per_expert.assign(shape.experts, rows);
  workload.phase = phase;
  return workload;
}

GemmPlans plans_of(const GemmWorkload& workload) {
  auto plans = search_gemm_plans(workload, compiled_gemm_configs());
  EXPECT_TRUE(plans) << plans.error().message;
  return plans ? *plans : GemmPlans{{GemmPlan{}}, {}};
}

GemmConfig config_of(bool with_resident) {
  for (const GemmConfig& config : compiled_gemm_configs()) {
    if (config.has_resident() == with_resident) return config;
  }
  ADD_FAILURE() << "not compiled";
  return {};
}

// Eighteen launches of 5 ms: the clock had fallen (its burst is faster than its back to back).
bool is_sustained(const MeasuredGemm& m) { return m.k == 6144 && m.rows == 16384; }

double predicted_us(const MeasuredGemm& m, bool with_resident) {
  GemmWorkload workload = workload_of({m.experts, m.columns, m.k}, m.rows);
  if (is_sustained(m)) workload.clocks = ClockRegime::kSustained;
  const GemmCandidate candidate{config_of(with_resident), m.phase, m.pipeline};
  const auto legal = check_gemm_candidate(candidate, workload);
  EXPECT_TRUE(legal) << legal.error().message;
  return double(estimate_gemm(candidate, workload).nanoseconds) * 1e-3;
}

std::string name_of(const MeasuredGemm& m) {
  return fmt::format("N={} K={} {}x{} {}{}", m.columns, m.k, m.experts, m.rows,
                     apk::phase_name(m.phase), m.pipeline == kResident ? " resident" : "");
}

std::string refusal(const GemmCandidate& candidate, const GemmWorkload& workload) {
  const auto legal = check_gemm_candidate(candidate, workload);
  return legal ? "" : legal.error().message;
}

TEST(GemmConfigSearch, SharedBytesAreTheSizeOfTheLayout) {
  for (const SharedLayoutSize& size : shared_layout_sizes()) {
    EXPECT_EQ(gemm_shared_bytes(size.config), size.bytes)
        << size.config.main_stages << "+" << size.config.resident_stages;
  }
  for (const GemmConfig& config : compiled_gemm_configs()) {
    EXPECT_TRUE(std::ranges::any_of(shared_layout_sizes(), [&](const auto& size) {
      return size.config == config;
    })) << "a compiled configuration is not in shared_layout_size.cu";
  }
}

TEST(GemmConfigSearch, CompiledConfigurationsAreLegal) {
  for (const GemmConfig& config : compiled_gemm_configs()) {
    const auto legal = check_gemm_config(config);
    EXPECT_TRUE(legal) << legal.error().message;
  }
}

TEST(GemmConfigSearch, WhatACtaCannotHaveIsRefused) {
  const auto message = [](GemmConfig config) {
    const auto legal = check_gemm_config(config);
    return legal ? std::string() : legal.error().message;
  };
  EXPECT_EQ(message({.main_stages = 2}), "2 main stages: expected 3 or more");
  EXPECT_EQ(message({.main_stages = 4}),
            "285696 bytes of shared memory: a CTA can have 232448; take fewer stages");
  EXPECT_EQ(message({.math_registers = 204}),
            "math registers 204: expected a multiple of 8 from 24 to 240");
  EXPECT_EQ(message({.resident_registers = 16}),
            "resident registers 16: expected a multiple of 8 from 24 to 240");
  EXPECT_EQ(message({.math_registers = 216}),
            "67584 registers in all: a CTA of 512 threads has 65536; lower math_registers");
  // 384 threads start with 168 registers each, not with a third of the file.
  GemmConfig main_only = config_of(false);
  EXPECT_EQ(message(main_only), "");
  main_only.math_registers = 240;
  EXPECT_EQ(message(main_only),
            "68608 registers in all: a CTA of 384 threads has 64512; lower math_registers");
}

TEST(GemmConfigSearch, WhatAWorkloadRulesOutIsNamed) {
  const GemmConfig both = config_of(true);
  const GemmCandidate prefill{both, Phase::kPrefill, kMain};
  const GemmCandidate decode{both, Phase::kDecode, kMain};
  const GemmCandidate resident{both, Phase::kDecode, kResident};
  const GemmWorkload good = workload_of({8, 4096, 6144}, 16);
  EXPECT_EQ(refusal(prefill, good) + refusal(decode, good) + refusal(resident, good), "");
  EXPECT_EQ(refusal({config_of(false), Phase::kDecode, kResident}, good),
            "the configuration has no resident pipeline");
  EXPECT_EQ(refusal(prefill, workload_of({8, 4096, 6144}, 16, Phase::kDecode)),
            "its tiles are prefill's: the operation is decode");
  EXPECT_NE(refusal(decode, workload_of({8, 4224, 6144}, 16)), "");
  EXPECT_EQ(refusal(resident, workload_of({8, 4224, 6144}, 16)), "");
  // K / 128 = 5: one k tile in the last scale group, which only the resident pipeline can do.
  EXPECT_NE(refusal(decode, workload_of({8, 4096, 640}, 16)), "");
  EXPECT_EQ(refusal(resident, workload_of({8, 4096, 640}, 16)), "");
  EXPECT_NE(refusal(resident, workload_of({8, 4096, 100}, 16)), "");
  EXPECT_EQ(
      refusal(resident, workload_of({8, 4096, 6144}, 1 << 20)),
      "524288 row tiles of 8 experts, of at most 65535: more row blocks than the capacity; split "
      "the operation");
}

TEST(GemmConfigSearch, RankedAndRejectedAreAllCandidates) {
  const GemmPlans plans = plans_of(workload_of({8, 4096, 6144}, 16));
  EXPECT_EQ(plans.ranked.size(), 5u);
  ASSERT_EQ(plans.rejected.size(), 1u);
  EXPECT_EQ(describe(plans.rejected[0]),
            "resident 16x128, stages 4+0: the configuration has no resident pipeline");
  EXPECT_EQ(
      describe(plans.best()),
      "resident 16x128, stages 3+4, 232448 bytes shared: 53.8 us, 256 tiles in 2 waves, memory "
      "0.52 us and tensor 0.44 us a k tile");
}

TEST(GemmConfigSearch, ErrorsSayWhatWasExpected) {
  GemmWorkload workload = workload_of({8, 4096, 6144}, 16);
  workload.rows_per_expert.pop_back();
  const auto counts = search_gemm_plans(workload, compiled_gemm_configs());
  ASSERT_FALSE(counts);
  EXPECT_EQ(counts.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(counts.error().message,
            "grouped GEMM plan: 7 row counts for 8 experts; give one count per expert");
  workload = workload_of({8, 4096, 6144}, 16);
  workload.sms = 0;
  EXPECT_FALSE(search_gemm_plans(workload, compiled_gemm_configs()));
  const auto none = search_gemm_plans(workload_of({8, 100, 6144}, 16), compiled_gemm_configs());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(none.error().message.find("columns must be a multiple of 256"), std::string::npos);
  EXPECT_EQ(none.error().message.find('\n'), std::string::npos);
  EXPECT_FALSE(search_gemm_plans(workload_of({8, 4096, 6144}, 16), {}));
}

TEST(GemmConfigSearch, TheOrderIsTotalAndDoesNotHangOnTheInput) {
  std::vector<GemmConfig> configs(compiled_gemm_configs().begin(), compiled_gemm_configs().end());
  const GemmWorkload workload = workload_of({32, 3072, 1536}, 128);
  const GemmPlans forward = plans_of(workload);
  std::reverse(configs.begin(), configs.end());
  const auto backward = search_gemm_plans(workload, configs);
  ASSERT_TRUE(backward);
  ASSERT_EQ(forward.ranked.size(), backward->ranked.size());
  for (size_t i = 0; i < forward.ranked.size(); ++i) {
    EXPECT_TRUE(compare_gemm_plans(forward.ranked[i], backward->ranked[i]) == 0);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(compare_gemm_plans(forward.ranked[j], forward.ranked[i]) < 0);
      EXPECT_TRUE(compare_gemm_plans(forward.ranked[i], forward.ranked[j]) > 0);
    }
  }
  // Equal times: the configuration that can run beside prefill.
  EXPECT_EQ(forward.ranked[0].estimate.nanoseconds, forward.ranked[1].estimate.nanoseconds);
  EXPECT_TRUE(forward.best().candidate.config.has_resident());
}

TEST(GemmConfigSearch, ExpertsWithoutRowsCostNothing) {
  GemmWorkload sparse = workload_of({8, 4096, 6144}, 0);
  EXPECT_EQ(plans_of(sparse).best().estimate.tiles, 0u);
  sparse.rows_per_expert[3] = 16;
  const GemmPlan one = plans_of(workload_of({1, 4096, 6144}, 16)).best();
  EXPECT_TRUE(compare_gemm_plans(plans_of(sparse).best(), one) == 0);
}

TEST(GemmConfigModel, AgreesWithTheMeasuredTimes) {
  std::vector<double> errors;
  const auto add = [&](const MeasuredGemm& m, bool with_resident, double measured) {
    errors.push_back(std::abs(predicted_us(m, with_resident) / measured - 1));
    EXPECT_LT(errors.back(), 0.11) << name_of(m) << (with_resident ? "" : " main only");
  };
  for (const MeasuredGemm& m : kMeasuredGemms) {
    add(m, true, m.with_resident.back_to_back);
    if (m.main_only) add(m, false, m.main_only->back_to_back);
  }
  ASSERT_EQ(errors.size(), 72u);
  std::sort(errors.begin(), errors.end());
  RecordProperty("median_error", fmt::format("{:.4f}", errors[errors.size() / 2]));
  RecordProperty("worst_error", fmt::format("{:.4f}", errors.back()));
  EXPECT_LT(errors[errors.size() / 2], 0.03);
  EXPECT_LT(errors[errors.size() * 9 / 10], 0.06);
}

struct MeasuredPlan {
  const MeasuredGemm* gemm;
  bool with_resident;
  double microseconds;
};

// Every pair of pipelines or orientations that was measured on the same rows, however small the
// difference.
TEST(GemmConfigModel, ChoosesTheMeasuredFasterPipeline) {
  std::vector<MeasuredPlan> plans;
  for (const MeasuredGemm& m : kMeasuredGemms) {
    plans.push_back({&m, true, m.with_resident.back_to_back});
    if (m.main_only) plans.push_back({&m, false, m.main_only->back_to_back});
  }
  size_t pairs = 0;
  for (const MeasuredPlan& a : plans) {
    for (const MeasuredPlan& b : plans) {
      const MeasuredGemm &x = *a.gemm, &y = *b.gemm;
      const bool same =
          x.columns == y.columns && x.k == y.k && x.experts == y.experts && x.rows == y.rows;
      if (!same || &x >= &y) continue;
      ++pairs;
      EXPECT_EQ(a.microseconds < b.microseconds,
                predicted_us(x, a.with_resident) < predicted_us(y, b.with_resident))
          << name_of(x) << " against " << name_of(y);
    }
  }
  // 8 workloads on resident and (two configurations) main; 4 in two orientations of two each.
  EXPECT_EQ(pairs, 8u * 2 + 4 * 4);
}

TEST(GemmConfigModel, ChoosesTheMeasuredFasterConfigurationBeyondTheSpread) {
  size_t pairs = 0;
  for (const MeasuredGemm& m : kMeasuredGemms) {
    if (!m.main_only) continue;
    const MeasuredTime &a = m.with_resident, &b = *m.main_only;
    if (a.burst_low <= b.burst_high && b.burst_low <= a.burst_high) continue;
    ++pairs;
    EXPECT_EQ(a.back_to_back < b.back_to_back, predicted_us(m, true) < predicted_us(m, false))
        << name_of(m);
  }
  EXPECT_GE(pairs, 6u);
}

// What the search answers for the rows that were measured on both pipelines.
TEST(GemmConfigModel, FewRowsAreResidentManyAreMain) {
  for (const auto& [columns, k] :
       {std::pair{3072u, 3072u}, {3072u, 1536u}, {4096u, 6144u}, {6144u, 2048u}}) {
    for (const uint32_t experts : {8u, 32u}) {
      const GemmShape shape{experts, columns, k};
      EXPECT_EQ(plans_of(workload_of(shape, 16)).best().candidate.pipeline, kResident);
      EXPECT_EQ(plans_of(workload_of(shape, 128)).best().candidate.pipeline, kMain);
      EXPECT_EQ(plans_of(workload_of(shape, 128)).best().candidate.phase, Phase::kDecode);
    }
    const GemmPlan prefill = plans_of(workload_of({8, columns, k}, 8192)).best();
    EXPECT_EQ(prefill.candidate.phase, Phase::kPrefill);
    EXPECT_FALSE(prefill.candidate.config.has_resident());
  }
}

}  // namespace
}  // namespace expertplex::cuda
