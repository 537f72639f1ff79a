// PagePool: which pages of one attention server's KV cache are free. A page is kKvPageTokens tokens
// of all layers (backend/kv_cache.h). Conserved: every page is either free or owned by exactly one
// request; giving back a page that is not in use is a bug and ends the process.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace expertplex {

class PagePool {
 public:
  explicit PagePool(int page_count);

  // `count` pages, or nothing at all.
  std::optional<std::vector<uint32_t>> allocate(int count);
  void release(std::span<const uint32_t> pages);

  int total() const { return static_cast<int>(in_use_.size()); }
  int free() const { return static_cast<int>(free_.size()); }
  int used() const { return total() - free(); }

 private:
  std::vector<uint32_t> free_;  // a stack: the page that was used last is the warmest
  std::vector<bool> in_use_;
};

}  // namespace expertplex
