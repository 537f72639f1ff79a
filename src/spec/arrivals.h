// When requests arrive: a renewal process with gamma-distributed gaps. A coefficient of variation
// of 1 is the Poisson process; published traces have 1 (Azure conversation) to 13 (Azure code).
#pragma once

#include "base/random.h"
#include "base/result.h"

namespace expertplex {

class Arrivals {
 public:
  // rate: requests per second, above 0; cv: standard deviation of a gap / its mean, above 0.
  static Result<Arrivals> make(double rate, double cv = 1);

  // Seconds to the next request.
  double next_gap(Random& random) const;

 private:
  Arrivals(double shape, double scale) : shape_(shape), scale_(scale) {}
  double shape_, scale_;  // of the gamma distribution: mean shape * scale, cv 1 / sqrt(shape)
};

}  // namespace expertplex
