#include "bench/summary.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

class Summary : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_ = ::testing::TempDir() + "expertplex_summary_test.json";
};

TEST_F(Summary, NewRowsReplaceOldOnesAndStaySorted) {
  ASSERT_TRUE(update_summary(path_,
                             {{"b.x", 1, "ms", "<= 2", "run b"}, {"a.x", 2, "", "", "run a"}},
                             "abc", "here")
                  .ok());
  ASSERT_TRUE(update_summary(path_, {{"b.x", 3, "ms", "<= 2", "run b"}}, "def", "there").ok());
  const auto json = read_json_file(path_);
  ASSERT_TRUE(json.ok());
  ASSERT_EQ(json->size(), 2u);
  EXPECT_EQ((*json)[0]["name"], "a.x");
  EXPECT_EQ((*json)[0]["commit"], "abc");
  EXPECT_EQ((*json)[1]["value"], 3.0);
  EXPECT_EQ((*json)[1]["commit"], "def");
}

TEST_F(Summary, ABrokenFileIsNamedAndKept) {
  std::ofstream(path_) << "{\"rows\": 1}";
  const auto result = update_summary(path_, {{"a", 1, "", "", ""}}, "c", "m");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find(path_), std::string::npos);
  EXPECT_TRUE(read_json_file(path_).ok());
}

TEST(Quantile, InterpolatesBetweenOrderStatistics) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({0, 10}, 0.99), 9.9);
  const Spread s = spread({5, 1, 3});
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.low, 1);
  EXPECT_EQ(s.high, 5);
}

}  // namespace
}  // namespace expertplex::bench
