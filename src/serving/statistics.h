// The engine's counters and histograms. Bucket bounds are the ones that vLLM's dashboards are drawn
// for.
#pragma once

#include "serving/engine.h"
#include "serving/request.h"

namespace expertplex {

// Empty histograms with their bounds; lengths go up to the context length.
EngineStatistics make_statistics(int max_model_len);

// 1, 2, 5, 10, 20, ... up to `max`.
std::vector<double> length_bounds(int max);

// What a request that ended with stop or length adds.
void observe_finished(EngineStatistics& statistics, const Request& request, Nanoseconds now);

}  // namespace expertplex
