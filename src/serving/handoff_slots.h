// HandoffSlots: the handoff words of one decode server (transport/kv_handoff.h). A slot carries one
// request's KV handoff from admission until the prefill server has seen the acknowledgement; each
// use has a new epoch, so that a late word of an earlier request is never taken for this one's.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace expertplex {

struct HandoffSlot {
  int index = -1;
  uint32_t epoch = 0;
};

class HandoffSlots {
 public:
  explicit HandoffSlots(int count) : epochs_(static_cast<size_t>(count)), open_(epochs_.size()) {
    for (int slot = count - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  std::optional<HandoffSlot> open() {
    if (free_.empty()) return std::nullopt;
    const int slot = free_.back();
    free_.pop_back();
    open_[slot] = true;
    return HandoffSlot{slot, ++epochs_[slot]};
  }

  void close(HandoffSlot slot) {
    EXPERTPLEX_CHECK(slot.index >= 0 && open_[slot.index] && epochs_[slot.index] == slot.epoch,
                     "handoff slot {} epoch {} is not open", slot.index, slot.epoch);
    open_[slot.index] = false;
    free_.push_back(slot.index);
  }

  int used() const { return static_cast<int>(epochs_.size() - free_.size()); }
  bool full() const { return free_.empty(); }

 private:
  std::vector<uint32_t> epochs_;
  std::vector<bool> open_;
  std::vector<int> free_;
};

}  // namespace expertplex
