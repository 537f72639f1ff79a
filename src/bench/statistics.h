// Medians, percentiles and spreads of samples, for benches.
#pragma once

#include <vector>

namespace expertplex::bench {

// The q-quantile (0..1) by linear interpolation between order statistics; 0 for no samples.
double quantile(std::vector<double> samples, double q);

struct Spread {
  double median = 0, low = 0, high = 0;  // low and high: minimum and maximum
};
Spread spread(const std::vector<double>& samples);

}  // namespace expertplex::bench
