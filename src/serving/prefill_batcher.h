// PrefillBatcher: what one prefill server runs next. Prompts are taken first come, first served, up
// to max_tokens rows an iteration: several short prompts together, a long prompt in several pieces,
// with the next prompts behind its last piece. A piece that is not the last of its prompt ends on a
// page boundary, so that every page is handed off exactly once.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "serving/request.h"

namespace expertplex {

// Rows [first, first + count) of a prompt.
struct PrefillPiece {
  Request* request = nullptr;
  int first = 0;
  int count = 0;
  bool last() const { return first + count == request->prompt_size(); }
};

class PrefillBatcher {
 public:
  // `max_tokens` is a multiple of kKvPageTokens.
  explicit PrefillBatcher(int max_tokens);

  void push(Request* request);
  // Takes out a request whose prompt is done, or that has ended.
  void remove(Request* request);

  // The next iteration's pieces; the queue stays as it is until `advance` or `remove`.
  std::vector<PrefillPiece> form() const;
  // The piece was computed.
  void advance(const PrefillPiece& piece);

  bool empty() const { return queue_.empty(); }
  int64_t pending_tokens() const { return pending_tokens_; }

 private:
  int max_tokens_;
  std::deque<Request*> queue_;
  int64_t pending_tokens_ = 0;
};

}  // namespace expertplex
