// linear(): against a double reference, and bit for bit against itself under every blocking.
#include <gtest/gtest.h>

#include "cpu/kernels_reference.h"

namespace expertplex::cpu {
namespace {

using testing::random_values;
using testing::random_weight;
using testing::same_bits;
using testing::TestWeight;

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBf16, DataType::kF16, DataType::kFp8E4m3};

struct Case {
  int rows, out, in;
  bool input_scales;
};

struct Problem {
  TestWeight weight;
  std::vector<float> x, x_scales;
  LinearInput input;
};

Problem make_problem(Random& random, DataType type, const Case& c) {
  Problem p;
  p.weight = random_weight(random, type, c.out, c.in);
  const int64_t stride = c.in + 3;  // rows need not be packed
  p.x = random_values(random, static_cast<size_t>(c.rows) * stride);
  p.input = LinearInput{.data = p.x.data(), .row_stride = stride};
  if (c.input_scales) {
    const int tiles = (c.in + 127) / 128;
    p.x_scales = random_values(random, static_cast<size_t>(c.rows) * tiles);
    p.input.scales = p.x_scales.data();
    p.input.scale_stride = tiles;
  }
  return p;
}

std::vector<float> run(const KernelSet& kernels, const Problem& p, int rows, int first, int count) {
  std::vector<float> y(static_cast<size_t>(rows) * count, -77.0f);
  kernels.linear(p.input, rows, p.weight.weight, first, count, y.data(), count, linear_scratch());
  return y;
}

void expect_close(const Problem& p, const Case& c, const std::vector<float>& y, const char* set) {
  // Products in float, except on AMX: two BF16 parts of x, 16 bits.
  const double tolerance = std::string(set) == "amx" ? 1e-5 : 1e-6;
  const int tiles = (c.in + 127) / 128;
  for (int r = 0; r < c.rows; ++r) {
    for (int n = 0; n < c.out; ++n) {
      double sum = 0, magnitude = 0;
      for (int k = 0; k < c.in; ++k) {
        double term = static_cast<double>(p.x[r * p.input.row_stride + k]) *
                      p.weight.values[static_cast<size_t>(n) * c.in + k];
        if (c.input_scales) term *= p.x_scales[r * tiles + k / 128];
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(y[static_cast<size_t>(r) * c.out + n], sum, tolerance * magnitude + 1e-30)
          << set << " row " << r << " output " << n << " of " << c.rows << "x" << c.out << "x"
          << c.in;
    }
  }
}

TEST(Linear, AgreesWithDoubleReference) {
  Random random(1);
  const KernelSets all = runnable_kernel_sets();
  for (int round = 0; round < 60; ++round) {
    const DataType type = kTypes[round % 4];
    Case c{static_cast<int>(random.between(1, 19)), static_cast<int>(random.between(1, 150)),
           static_cast<int>(random.between(1, 400)), random.chance(0.3)};
    if (round % 3 == 0) c.in = 128 * static_cast<int>(random.between(1, 3));
    const Problem p = make_problem(random, type, c);
    for (int s = 0; s < all.count; ++s) {
      expect_close(p, c, run(*all.sets[s], p, c.rows, 0, c.out), all.sets[s]->name);
    }
  }
}

// A long row does not fit the panel of widened weights, a short one many times.
TEST(Linear, RowsOfAnyLength) {
  Random random(2);
  const KernelSets all = runnable_kernel_sets();
  for (const Case c :
       {Case{9, 6, 20000, false}, Case{9, 9, 3000, false}, Case{40, 300, 16, false}}) {
    for (const DataType type : kTypes) {
      const Problem p = make_problem(random, type, c);
      for (int s = 0; s < all.count; ++s) {
        expect_close(p, c, run(*all.sets[s], p, c.rows, 0, c.out), all.sets[s]->name);
      }
    }
  }
}

// Contract 1: the same bits for every number of rows and every range of outputs.
TEST(Linear, BitsDoNotDependOnRowsOrOutputRange) {
  Random random(3);
  const KernelSets all = runnable_kernel_sets();
  for (const DataType type : kTypes) {
    for (const bool input_scales : {false, true}) {
      const Case c{37, 140, 272, input_scales};
      const Problem p = make_problem(random, type, c);
      for (int s = 0; s < all.count; ++s) {
        const auto whole = run(*all.sets[s], p, c.rows, 0, c.out);
        for (int rows = 1; rows < c.rows; ++rows) {
          const auto part = run(*all.sets[s], p, rows, 0, c.out);
          const std::vector<float> expected(whole.begin(), whole.begin() + rows * c.out);
          ASSERT_TRUE(same_bits(part, expected)) << all.sets[s]->name << ", " << rows << " rows";
        }
        for (int round = 0; round < 40; ++round) {
          const int first = static_cast<int>(random.below(c.out));
          const int count = static_cast<int>(random.between(1, c.out - first));
          const int rows = static_cast<int>(random.between(1, c.rows));
          const auto part = run(*all.sets[s], p, rows, first, count);
          for (int r = 0; r < rows; ++r) {
            ASSERT_EQ(
                std::memcmp(&part[r * count], &whole[r * c.out + first], count * sizeof(float)), 0)
                << all.sets[s]->name << " outputs from " << first << ", " << count;
          }
        }
      }
    }
  }
}

TEST(Linear, RowsThatStandAnywhereGiveTheSameBits) {
  Random random(4);
  const KernelSets all = runnable_kernel_sets();
  const Case c{23, 64, 256, false};
  const Problem p = make_problem(random, DataType::kFp8E4m3, c);
  for (int s = 0; s < all.count; ++s) {
    const auto whole = run(*all.sets[s], p, c.rows, 0, c.out);
    for (int r = 0; r < c.rows; ++r) {
      std::vector<float> y(c.out);
      LinearInput one = p.input;
      one.data += r * one.row_stride;
      all.sets[s]->linear(one, 1, p.weight.weight, 0, c.out, y.data(), c.out, linear_scratch());
      EXPECT_EQ(std::memcmp(y.data(), &whole[r * c.out], c.out * sizeof(float)), 0);
    }
  }
}

TEST(Linear, TheActiveSetIsOneOfTheRunnable) {
  const KernelSets all = runnable_kernel_sets();
  bool found = false;
  for (int s = 0; s < all.count; ++s) found |= std::string(all.sets[s]->name) == kernel_set_name();
  EXPECT_TRUE(found) << kernel_set_name();
}

}  // namespace
}  // namespace expertplex::cpu
