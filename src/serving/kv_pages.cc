#include "serving/kv_pages.h"

#include "base/check.h"

namespace expertplex {

PagePool::PagePool(int page_count) : in_use_(static_cast<size_t>(page_count)) {
  free_.reserve(in_use_.size());
  for (int page = page_count - 1; page >= 0; --page) free_.push_back(static_cast<uint32_t>(page));
}

std::optional<std::vector<uint32_t>> PagePool::allocate(int count) {
  EXPERTPLEX_CHECK(count >= 0);
  if (count > free()) return std::nullopt;
  std::vector<uint32_t> pages(free_.end() - count, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(count));
  for (uint32_t page : pages) in_use_[page] = true;
  return pages;
}

void PagePool::release(std::span<const uint32_t> pages) {
  for (uint32_t page : pages) {
    EXPERTPLEX_CHECK(page < in_use_.size() && in_use_[page], "page {} is not in use", page);
    in_use_[page] = false;
    free_.push_back(page);
  }
}

}  // namespace expertplex
