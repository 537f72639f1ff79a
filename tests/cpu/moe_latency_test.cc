// Latency of decode operations, dispatch to combined, of the bundled model's shape: a report, run
// small with the tests so that it keeps working. No time is asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "moe_rig.h"

namespace expertplex::cpu {
namespace {

using transport::MoePhase;

struct Latency {
  double median_us = 0, p99_us = 0;
};

Latency decode_latency(MoeRig& rig, transport::MoeClient& client, int rows, int iterations) {
  const MoeDimensions& d = rig.dimensions();
  Random random(1);
  const MoeRows input = draw_moe_rows(random, d, rows);
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    EXPECT_TRUE(client.begin_iteration());
    for (int layer = 0; layer < d.layers; ++layer) {
      const Nanoseconds start = now_ns();
      EXPECT_TRUE(client.dispatch(layer, input.encoded, {rows, d.top_k, input.ids, input.weights}));
      EXPECT_TRUE(client.combine(layer));
      times.push_back(static_cast<double>(now_ns() - start) / kMicrosecond);
    }
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

TEST(MoeLatency, DecodeOperationsOfTheBundledShape) {
  spdlog::set_level(spdlog::level::off);
  MoeDimensions d;
  d.layers = 4;
  d.hidden = d.intermediate = 256;
  d.experts = 16;
  d.weights = DataType::kFp8E4m3;
  d.decode_participants = 1;
  d.max_decode_rows = 32;
  d.max_prefill_tokens = 2048;
  d.page_rows = 32;
  const RandomMoeModel model(d, 1);
  for (const int servers : {1, 2}) {
    for (const MoeActivation activation : {MoeActivation::kNative, MoeActivation::kFp8}) {
      d.moe_servers = servers;
      d.activation = activation;
      MoeRig rig(d, model);
      ASSERT_EQ(rig.start(), "");
      auto decode = rig.connect(MoePhase::kDecode, 0);
      for (const int rows : {1, 32}) {
        decode_latency(rig, *decode, rows, 5);
        const Latency l = decode_latency(rig, *decode, rows, 100);
        std::printf(
            "[  latency ] %d server(s) x %d clusters, %s: %2d rows: median %.0f us, p99 %.0f us\n",
            servers, d.clusters, activation == MoeActivation::kFp8 ? "fp8" : "native", rows,
            l.median_us, l.p99_us);
      }
      EXPECT_EQ(rig.stop(), "");
    }
  }
}

}  // namespace
}  // namespace expertplex::cpu
