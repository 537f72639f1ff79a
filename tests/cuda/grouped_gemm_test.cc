// The GEMM pipelines as an ordinary launch, against an exact reference, on the shapes of the models
// that we serve and on ragged random ones.
#include <gtest/gtest.h>

#include <random>

#include "cuda/reference/gemm_problem.h"

namespace expertplex::cuda {
namespace {

using apk::Phase;
using apk::PipelineRole;

// BF16 rounding of the result is 2^-9 = 1.95e-3 at worst, 1.66e-3 relative L2 on random data.
constexpr double kTolerance = 2e-3;

class GroupedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no Hopper GPU on this machine";
  }

  static void expect_matches(const GemmProblem& problem, double tolerance,
                             const std::string& what) {
    const auto errors = compare_with_reference(problem);
    ASSERT_TRUE(errors) << errors.error().message;
    const GemmErrors& e = errors.value();
    EXPECT_LT(e.relative_l2, tolerance) << what;
    EXPECT_LT(e.worst, 2 * tolerance) << what;
    EXPECT_EQ(e.unwritten, 0u) << what;
    EXPECT_EQ(e.overwritten, 0u) << what;
  }

  static void run(GemmProblem& problem, Phase phase, PipelineRole pipeline,
                  const GemmConfig& config) {
    const auto operation = GemmOperation::make(problem.operands(), phase, pipeline,
                                               problem.rows_per_expert, problem.placement);
    ASSERT_TRUE(operation) << operation.error().message;
    const GemmOperation* op = &operation.value();
    const bool resident = pipeline == PipelineRole::kResident;
    const auto launched =
        launch_grouped_gemm(config, resident ? nullptr : op, resident ? op : nullptr, 132, nullptr);
    ASSERT_TRUE(launched) << launched.error().message;
    const auto done = cuda_result(cudaDeviceSynchronize(), "GEMM");
    ASSERT_TRUE(done) << done.error().message;
  }

  static void check(const GemmShape& shape, const std::vector<uint32_t>& rows,
                    RowPlacement placement, Phase phase, PipelineRole pipeline,
                    GemmData data = GemmData::kNormal, double tolerance = kTolerance) {
    auto problem = GemmProblem::make(shape, rows, placement, ++seed_, data);
    ASSERT_TRUE(problem) << problem.error().message;
    for (const GemmConfig& config : compiled_gemm_configs()) {
      if (pipeline == PipelineRole::kResident && !config.has_resident()) continue;
      ASSERT_TRUE(problem.value().poison());
      run(problem.value(), phase, pipeline, config);
      expect_matches(problem.value(), tolerance,
                     fmt::format("{} experts N={} K={} {} {} rows[0]={} stages={}", shape.experts,
                                 shape.columns, shape.k, apk::phase_name(phase),
                                 pipeline == PipelineRole::kResident ? "resident" : "main", rows[0],
                                 config.main_stages));
      if (HasFailure()) return;
    }
  }

  static uint32_t seed_;
};

uint32_t GroupedGemm::seed_ = 0;

const GemmShape kShapes[] = {
    {8, 3072, 3072},  // MiniMax-M2 gate_up
    {8, 3072, 1536},  // MiniMax-M2 down
    {4, 4096, 6144},  // GLM-5 gate_up
    {4, 6144, 2048},  // GLM-5 down
    {8, 1536, 2048},  // Qwen3-30B gate_up
    {8, 2048, 768},   // Qwen3-30B down
    {4, 4096, 7168},  // DeepSeek-V3 gate_up
    {4, 7168, 2048},  // DeepSeek-V3 down
};

std::vector<uint32_t> ragged(uint32_t experts, uint32_t most, std::mt19937& random) {
  std::vector<uint32_t> rows(experts);
  for (uint32_t& r : rows) r = random() % 4 == 0 ? 0 : random() % (most + 1);
  return rows;
}

TEST_F(GroupedGemm, PrefillOnModelShapes) {
  std::mt19937 random(1);
  for (const GemmShape& shape : kShapes) {
    std::vector<uint32_t> rows = ragged(shape.experts, 700, random);
    rows[0] = 513;
    check(shape, rows, {}, Phase::kPrefill, PipelineRole::kMain);
  }
}

TEST_F(GroupedGemm, DecodeOnModelShapes) {
  std::mt19937 random(2);
  for (const GemmShape& shape : kShapes) {
    std::vector<uint32_t> rows = ragged(shape.experts, 128, random);
    rows[0] = 128;
    check(shape, rows, {128}, Phase::kDecode, PipelineRole::kMain);
    rows = ragged(shape.experts, 128, random);
    rows[0] = 16;
    check(shape, rows, {128}, Phase::kDecode, PipelineRole::kResident);
  }
}

TEST_F(GroupedGemm, EmptyAndLopsided) {
  const GemmShape shape{5, 512, 512};
  for (const auto& rows : std::vector<std::vector<uint32_t>>{{0, 0, 0, 0, 0},
                                                             {0, 0, 300, 0, 0},
                                                             {1, 1, 1, 1, 1},
                                                             {0, 0, 0, 0, 1},
                                                             {128, 0, 64, 0, 65}}) {
    check(shape, rows, {}, Phase::kPrefill, PipelineRole::kMain);
    check(shape, rows, {512}, Phase::kDecode, PipelineRole::kMain);
    check(shape, rows, {512}, Phase::kDecode, PipelineRole::kResident);
  }
}

TEST_F(GroupedGemm, RandomShapes) {
  std::mt19937 random(3);
  for (uint32_t i = 0; i < 200; ++i) {
    GemmShape shape;
    shape.experts = 1 + random() % 9;
    shape.columns = 256 * (1 + random() % 6);
    do {
      shape.k = 128 * (1 + random() % 20);
    } while (shape.k_tiles() % 4 == 1);
    const uint32_t kind = random() % 3;
    const Phase phase = kind == 0 ? Phase::kPrefill : Phase::kDecode;
    const RowPlacement placement{random() % 2 ? 272u : 0u};
    check(shape, ragged(shape.experts, 271, random), placement, phase,
          kind == 2 ? PipelineRole::kResident : PipelineRole::kMain);
    if (HasFailure()) return;
  }
}

// Sums of equal signs and mixed magnitudes: within 128 of K the tensor core's 14 bits cost up to
// 3.2e-3; without promotion between them the error would grow with K, to more than 1e-2.
TEST_F(GroupedGemm, NeedsPromotion) {
  constexpr double kWithPromotion = 4e-3;
  for (const PipelineRole pipeline : {PipelineRole::kMain, PipelineRole::kResident}) {
    check({2, 512, 7168}, {16, 12}, {16}, Phase::kDecode, pipeline, GemmData::kPromotion,
          kWithPromotion);
  }
  check({2, 512, 7168}, {300, 12}, {}, Phase::kPrefill, PipelineRole::kMain, GemmData::kPromotion,
        kWithPromotion);
}

// A row's result depends on the row and the weights alone.
TEST_F(GroupedGemm, BitwiseEqualForEveryRowCountAndPipeline) {
  const GemmShape shape{2, 512, 1536};
  auto full = GemmProblem::make(shape, {128, 128}, {128}, 77);
  ASSERT_TRUE(full);
  run(full.value(), Phase::kPrefill, PipelineRole::kMain, compiled_gemm_configs()[0]);
  const auto want = full.value().read_output();
  ASSERT_TRUE(want);
  for (const uint32_t rows : {1u, 15u, 16u, 17u, 64u, 65u, 127u}) {
    for (const PipelineRole pipeline : {PipelineRole::kMain, PipelineRole::kResident}) {
      full.value().rows_per_expert = {rows, 128 - rows};
      ASSERT_TRUE(full.value().poison());
      run(full.value(), Phase::kDecode, pipeline, compiled_gemm_configs()[0]);
      const auto got = full.value().read_output();
      ASSERT_TRUE(got);
      for (uint32_t e = 0; e < 2; ++e) {
        for (uint32_t r = 0; r < full.value().rows_per_expert[e]; ++r) {
          for (uint32_t c = 0; c < shape.columns; ++c) {
            const size_t i = (size_t{e} * 128 + r) * shape.columns + c;
            ASSERT_EQ(got.value()[i], want.value()[i])
                << "row " << r << " of " << rows << ", column " << c;
          }
        }
      }
    }
  }
}

TEST(GemmShapes, RefusedByName) {
  EXPECT_TRUE(check_gemm_shape({8, 3072, 3072}, Phase::kPrefill, PipelineRole::kMain));
  EXPECT_FALSE(check_gemm_shape({8, 3072, 3000}, Phase::kPrefill, PipelineRole::kMain));
  EXPECT_FALSE(check_gemm_shape({8, 3070, 3072}, Phase::kPrefill, PipelineRole::kMain));
  EXPECT_FALSE(check_gemm_shape({8, 384, 3072}, Phase::kDecode, PipelineRole::kMain));
  EXPECT_FALSE(check_gemm_shape({8, 512, 640}, Phase::kPrefill, PipelineRole::kMain));
  EXPECT_TRUE(check_gemm_shape({8, 512, 640}, Phase::kDecode, PipelineRole::kResident));
}

}  // namespace
}  // namespace expertplex::cuda
