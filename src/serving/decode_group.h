// DecodeGroup: the decode servers of a layout iterate in lockstep, because an expert's weights are
// read once for all of them (DESIGN section 2, "Who is in an operation"). An iteration opens as
// soon as any member has a sequence; then every member takes part exactly once, with its batch or,
// without sequences, by skipping; when the last has left, the next may open.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace expertplex {

class DecodeGroup {
 public:
  explicit DecodeGroup(int members) : parts_(static_cast<size_t>(members), Part::kLeft) {}

  bool is_open() const { return inside_ > 0; }
  void open() {
    EXPERTPLEX_CHECK(!is_open());
    for (Part& part : parts_) part = Part::kExpected;
    inside_ = static_cast<int>(parts_.size());
    ++iteration_;
  }

  // Whether the member has yet to take part in the open iteration.
  bool expects(int member) const { return is_open() && parts_[member] == Part::kExpected; }
  bool has_joined(int member) const { return parts_[member] == Part::kJoined; }
  void join(int member) {
    EXPERTPLEX_CHECK(expects(member));
    parts_[member] = Part::kJoined;
  }
  void leave(int member) {
    EXPERTPLEX_CHECK(has_joined(member));
    parts_[member] = Part::kLeft;
    --inside_;
  }

  uint64_t iteration() const { return iteration_; }

 private:
  enum class Part : uint8_t { kExpected, kJoined, kLeft };
  std::vector<Part> parts_;
  int inside_ = 0;  // members that have not left the open iteration
  uint64_t iteration_ = 0;
};

}  // namespace expertplex
