#include "spec/arrivals.h"

#include <cmath>

namespace expertplex {
namespace {

double open_unit(Random& random) {
  // Never 0, whose logarithm is none.
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1.0p-53;
}

// Box-Muller, one of the two values.
double normal(Random& random) {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(open_unit(random)));
  return radius * std::cos(kTwoPi * open_unit(random));
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), for shape >= 1.
double gamma_from_one(double shape, Random& random) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double base = 1 + c * x;
    if (base <= 0) continue;
    const double v = base * base * base;
    if (std::log(open_unit(random)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

Result<Arrivals> Arrivals::make(double rate, double cv) {
  if (!(rate > 0) || !std::isfinite(rate)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "arrival rate: expected more than 0 requests per second, got {}", rate);
  }
  if (!(cv > 0) || !std::isfinite(cv)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "coefficient of variation of arrivals: expected more than 0, got {}", cv);
  }
  const double shape = 1 / (cv * cv);
  return Arrivals(shape, 1 / (rate * shape));
}

double Arrivals::next_gap(Random& random) const {
  if (shape_ == 1) return -std::log(open_unit(random)) * scale_;
  if (shape_ > 1) return gamma_from_one(shape_, random) * scale_;
  // A gamma of shape + 1, times a power of a uniform.
  const double boost = std::pow(open_unit(random), 1 / shape_);
  return gamma_from_one(shape_ + 1, random) * boost * scale_;
}

}  // namespace expertplex
