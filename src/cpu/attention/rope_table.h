// RopeTable: cosines and sines of the rotary embedding for every position, computed as the models'
// reference does: inverse frequencies and angles in float32.
//
// Thread rules: immutable.
#pragma once

#include <cstddef>
#include <vector>

namespace expertplex::cpu {

class RopeTable {
 public:
  // rotary_dim even; half of it are angles.
  RopeTable(int position_count, int rotary_dim, double theta);

  int half() const { return half_; }
  int position_count() const { return position_count_; }
  const float* cosines(int position) const { return &cosines_[at(position)]; }  // [half]
  const float* sines(int position) const { return &sines_[at(position)]; }

 private:
  size_t at(int position) const {
    return static_cast<size_t>(position) * static_cast<size_t>(half_);
  }

  int position_count_, half_;
  std::vector<float> cosines_, sines_;  // [position_count, half]
};

}  // namespace expertplex::cpu
