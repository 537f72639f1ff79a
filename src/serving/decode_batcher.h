// DecodeBatcher: continuous batching of one decode server: sequences join and leave between
// iterations, in order of arrival, at most max_batch in one. Admission gives out as many seats as
// the batch has, so nobody who has a first token waits for the second.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "serving/request.h"

namespace expertplex {

class DecodeBatcher {
 public:
  explicit DecodeBatcher(int max_batch) : max_batch_(max_batch) { EXPERTPLEX_CHECK(max_batch > 0); }

  void join(Request* request) { sequences_.push_back(request); }
  void leave(Request* request) {
    const auto it = std::find(sequences_.begin(), sequences_.end(), request);
    EXPERTPLEX_CHECK(it != sequences_.end(), "request {} is not decoding", request->id.value);
    sequences_.erase(it);
  }

  // The next iteration's sequences.
  std::vector<Request*> form() const {
    const size_t count = std::min(sequences_.size(), static_cast<size_t>(max_batch_));
    return {sequences_.begin(), sequences_.begin() + static_cast<ptrdiff_t>(count)};
  }

  bool empty() const { return sequences_.empty(); }
  int size() const { return static_cast<int>(sequences_.size()); }

 private:
  int max_batch_;
  std::vector<Request*> sequences_;
};

}  // namespace expertplex
