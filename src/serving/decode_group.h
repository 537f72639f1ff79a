// DecodeGroup: the decode servers of a layout iterate in lockstep, because an expert's weights are
// read once for all of them (DESIGN section 2, "Who is in an operation"). An iteration opens as
// soon as any member has a sequence; then every member takes part exactly once, with its batch or,
// without sequences, by skipping; when the last has left, the next may open.
//
// After a failure. On the wire, iterations are numbered by member 0, the leader, and the others
// take the newest number that they have not had (transport/moe_client.h). A member that failed
// before it took its number would take the old one in the next iteration and never meet the others.
// So the iteration after a failed one is *held*: the others may join only when the leader has
// published it. If the leader fails before that, they are dismissed: that iteration is over for
// them, and another held one follows.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace expertplex {

class DecodeGroup {
 public:
  explicit DecodeGroup(int members) : parts_(static_cast<size_t>(members), Part::kLeft) {}

  bool is_open() const {
    return std::any_of(parts_.begin(), parts_.end(), [](Part part) { return part != Part::kLeft; });
  }
  void open() {
    EXPERTPLEX_CHECK(!is_open());
    std::fill(parts_.begin(), parts_.end(), Part::kExpected);
    held_ = failed_;
    failed_ = begun_ = false;
    ++iteration_;
  }

  // Whether the member has yet to take part in the open iteration, and whether it may now.
  bool expects(int member) const { return parts_[member] == Part::kExpected; }
  bool may_join(int member) const { return expects(member) && (member == 0 || begun_ || !held_); }
  bool has_joined(int member) const { return parts_[member] == Part::kJoined; }
  void join(int member) {
    EXPERTPLEX_CHECK(may_join(member));
    parts_[member] = Part::kJoined;
  }

  // The leader has published the iteration. Returns whether others were held and may join now.
  bool begin() {
    EXPERTPLEX_CHECK(has_joined(0));
    return !std::exchange(begun_, true) && held_;
  }

  // Returns whether members were dismissed.
  bool leave(int member, bool failed) {
    EXPERTPLEX_CHECK(has_joined(member));
    parts_[member] = Part::kLeft;
    failed_ |= failed;
    if (member == 0 && !failed) begun_ = true;
    if (member != 0 || begun_ || !held_ || !is_open()) {
      dismissals_ = 0;
      return false;
    }
    std::fill(parts_.begin(), parts_.end(), Part::kLeft);
    ++dismissals_;
    return true;
  }

  uint64_t iteration() const { return iteration_; }
  int dismissals() const { return dismissals_; }  // in a row

 private:
  enum class Part : uint8_t { kLeft, kExpected, kJoined };
  std::vector<Part> parts_;
  bool failed_ = false;  // a member's part in this iteration
  bool held_ = false;
  bool begun_ = false;
  uint64_t iteration_ = 0;
  int dismissals_ = 0;
};

}  // namespace expertplex
