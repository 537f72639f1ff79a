#include "model/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace expertplex {
namespace {

TEST(SamplingParams, DefaultsAndEdgesAreValid) {
  SamplingParams params;
  EXPECT_TRUE(validate(params));
  params.temperature = 0;
  params.top_p = 1e-6f;
  params.top_k = 1 << 20;
  params.max_tokens = 1;
  params.min_tokens = 1;
  params.stop.assign(kMaxStopStrings, std::string(kMaxStopStringBytes, 'x'));
  EXPECT_TRUE(validate(params));
}

TEST(SamplingParams, RefusalsNameTheField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<std::function<void(SamplingParams&)>, const char*>> cases = {
      {[](auto& p) { p.max_tokens = 0; }, "field 'max_tokens': expected at least 1, got 0"},
      {[](auto& p) { p.min_tokens = -1; }, "field 'min_tokens'"},
      {[](auto& p) { p.max_tokens = 3, p.min_tokens = 4; },
       "expected at most max_tokens (3), got 4"},
      {[](auto& p) { p.temperature = -0.1f; }, "field 'temperature': expected 0 to 2"},
      {[=](auto& p) { p.temperature = nan; }, "field 'temperature'"},
      {[](auto& p) { p.top_p = 0; }, "field 'top_p'"},
      {[](auto& p) { p.top_p = 1.01f; }, "field 'top_p'"},
      {[=](auto& p) { p.top_p = nan; }, "field 'top_p'"},
      {[](auto& p) { p.top_k = -2; }, "field 'top_k'"},
      {[](auto& p) { p.stop = {""}; }, "field 'stop': expected non-empty strings"},
      {[](auto& p) { p.stop.assign(17, "x"); },
       "field 'stop': expected at most 16 strings, got 17"},
      {[](auto& p) { p.stop = {std::string(1025, 'x')}; }, "at most 1024 bytes, got 1025"},
      {[](auto& p) { p.stop_token_ids = {-1}; }, "field 'stop_token_ids'"},
  };
  for (const auto& [change, message] : cases) {
    SamplingParams params;
    change(params);
    const auto result = validate(params);
    ASSERT_FALSE(result) << message;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message, testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace expertplex
