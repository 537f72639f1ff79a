#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace expertplex::bench {

double quantile(std::vector<double> samples, double q) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double position = q * static_cast<double>(samples.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] +
         (position - static_cast<double>(below)) * (samples[above] - samples[below]);
}

Spread spread(const std::vector<double>& samples) {
  return {quantile(samples, 0.5), quantile(samples, 0.0), quantile(samples, 1.0)};
}

}  // namespace expertplex::bench
