#include "serving/prefill_batcher.h"

#include <algorithm>

#include "backend/kv_cache.h"
#include "base/check.h"

namespace expertplex {

PrefillBatcher::PrefillBatcher(int max_tokens) : max_tokens_(max_tokens) {
  EXPERTPLEX_CHECK(max_tokens > 0 && max_tokens % kKvPageTokens == 0);
}

void PrefillBatcher::push(Request* request) {
  queue_.push_back(request);
  pending_tokens_ += request->prompt_size() - request->prefilled;
}

void PrefillBatcher::remove(Request* request) {
  const auto it = std::find(queue_.begin(), queue_.end(), request);
  EXPERTPLEX_CHECK(it != queue_.end(), "request {} is not prefilling", request->id.value);
  queue_.erase(it);
  pending_tokens_ -= request->prompt_size() - request->prefilled;
}

std::vector<PrefillPiece> PrefillBatcher::form() const {
  std::vector<PrefillPiece> pieces;
  int budget = max_tokens_;
  for (Request* request : queue_) {
    const int remaining = request->prompt_size() - request->prefilled;
    const int count = remaining <= budget ? remaining : budget / kKvPageTokens * kKvPageTokens;
    if (count == 0) break;
    pieces.push_back({request, request->prefilled, count});
    if (!pieces.back().last()) break;
    budget -= count;
  }
  return pieces;
}

void PrefillBatcher::advance(const PrefillPiece& piece) {
  EXPERTPLEX_CHECK(piece.request->prefilled == piece.first);
  piece.request->prefilled += piece.count;
  pending_tokens_ -= piece.count;
}

}  // namespace expertplex
