#include "cpu/attention/rope_table.h"

#include <cmath>

namespace expertplex::cpu {

RopeTable::RopeTable(int position_count, int rotary_dim, double theta)
    : position_count_(position_count), half_(rotary_dim / 2) {
  std::vector<float> inverse(static_cast<size_t>(half_));
  for (int j = 0; j < half_; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    inverse[static_cast<size_t>(j)] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  const size_t count = static_cast<size_t>(position_count) * static_cast<size_t>(half_);
  cosines_.reserve(count);
  sines_.reserve(count);
  for (int position = 0; position < position_count; ++position) {
    for (const float frequency : inverse) {
      const float angle = static_cast<float>(position) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

}  // namespace expertplex::cpu
