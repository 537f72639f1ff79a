#include "serving/statistics.h"

#include <algorithm>

namespace expertplex {
namespace {

const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                               .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                               20,   40,   80,  160, 640, 2560};
const std::vector<double> kTokenBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                          .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequestBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kIterationTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                   512, 1024, 2048, 4096, 8192, 16384};

Histogram with_bounds(std::vector<double> bounds) {
  Histogram histogram;
  histogram.counts.resize(bounds.size() + 1);
  histogram.bounds = std::move(bounds);
  return histogram;
}

}  // namespace

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  if (counts.size() <= bounds.size()) counts.resize(bounds.size() + 1);
  ++counts[static_cast<size_t>(bucket)];
  sum += value;
  ++count;
}

std::vector<double> length_bounds(int max) {
  std::vector<double> bounds;
  for (int64_t power = 1;; power *= 10) {
    for (int64_t mantissa : {1, 2, 5}) {
      if (mantissa * power > max) return bounds;
      bounds.push_back(static_cast<double>(mantissa * power));
    }
  }
}

EngineStatistics make_statistics(int max_model_len) {
  EngineStatistics statistics;
  statistics.ttft_seconds = with_bounds(kFirstTokenBounds);
  statistics.itl_seconds = with_bounds(kTokenBounds);
  statistics.tpot_seconds = with_bounds(kTokenBounds);
  for (Histogram* histogram : {&statistics.e2e_seconds, &statistics.queue_seconds,
                               &statistics.prefill_seconds, &statistics.decode_seconds}) {
    *histogram = with_bounds(kRequestBounds);
  }
  statistics.prompt_length = with_bounds(length_bounds(max_model_len));
  statistics.generation_length = with_bounds(length_bounds(max_model_len));
  statistics.iteration_tokens = with_bounds(kIterationTokenBounds);
  return statistics;
}

void observe_finished(EngineStatistics& statistics, const Request& request, Nanoseconds now) {
  const int tokens = request.output.token_count();
  const double decode = to_seconds(request.last_token_at - request.first_token_at);
  statistics.e2e_seconds.observe(to_seconds(now - request.accepted_at));
  statistics.queue_seconds.observe(to_seconds(request.scheduled_at - request.submitted_at));
  statistics.prefill_seconds.observe(to_seconds(request.first_token_at - request.scheduled_at));
  statistics.decode_seconds.observe(decode);
  if (tokens > 1) statistics.tpot_seconds.observe(decode / (tokens - 1));
  statistics.prompt_length.observe(request.prompt_size());
  statistics.generation_length.observe(tokens);
}

}  // namespace expertplex
