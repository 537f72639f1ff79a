// The explorer's race check: who is ordered after which access to plain data.
#include "apk/explorer.h"
#include "apk/explorer_fiber.h"
#include "base/check.h"

namespace expertplex::apk {
namespace {

int write_bit(int region) { return region * (1 + kMaxFibers); }
int read_bit(int region, int fiber) { return write_bit(region) + 1 + fiber; }

}  // namespace

// Who knows what, without what everybody knows: that can make no difference any more.
uint64_t Explorer::order_hash() const {
  Knowledge common = fibers_[0]->live.known;
  for (const auto& fiber : fibers_) {
    for (int i = 0; i < Knowledge::kWords; ++i) common.words[i] &= fiber->live.known.words[i];
  }
  uint64_t h = hash_bytes(now_.readers, sizeof(uint32_t) * regions_.size());
  const auto add = [&](const Knowledge& known, uint64_t place) {
    for (int i = 0; i < Knowledge::kWords; ++i) {
      const uint64_t bits = known.words[i] & ~common.words[i];
      if (bits != 0) h = combine_hash(h, combine_hash(bits, place * Knowledge::kWords + i));
    }
  };
  for (const auto& fiber : fibers_) add(fiber->live.known, static_cast<uint64_t>(fiber->id));
  for (size_t w = 0; w < words_.size(); ++w) add(words_[w], kMaxFibers + w);
  return h;
}

int Explorer::define_region(const std::string& name, bool exclusive) {
  regions_.push_back({name, exclusive});
  EXPERTPLEX_CHECK(regions_.size() <= size_t{kMaxRegions});
  return static_cast<int>(regions_.size()) - 1;
}

void Explorer::add_range(int region, const void* start, size_t bytes) {
  const uint32_t begin = offset_of(start);
  ranges_.push_back({begin, begin + static_cast<uint32_t>(bytes), region});
}

int Explorer::region_at(const void* data) const {
  const uint32_t offset = offset_of(data);
  for (const Range& range : ranges_) {
    if (offset >= range.begin && offset < range.end) return range.region;
  }
  EXPERTPLEX_CHECK(false, "plain access at arena offset {} outside of every region", offset);
  return -1;
}

void Explorer::region_read(int r) {
  if (regions_[r].exclusive) return region_write(r);
  if (!fibers_[running_]->live.known.test(write_bit(r))) {
    report("reads " + regions_[r].name + " without being ordered after its last write");
  }
  now_.readers[r] |= 1u << running_;
  forget(read_bit(r, running_), running_);
}

void Explorer::region_write(int r) {
  const Knowledge& known = fibers_[running_]->live.known;
  if (!known.test(write_bit(r))) {
    report("writes " + regions_[r].name + " without being ordered after its last write");
  }
  for (int g = 0; g < static_cast<int>(fibers_.size()); ++g) {
    if (g != running_ && (now_.readers[r] >> g & 1) && !known.test(read_bit(r, g))) {
      report("writes " + regions_[r].name + " without being ordered after the read of " +
             model_.fiber_name(g));
    }
  }
  now_.readers[r] = 0;
  forget(write_bit(r), running_);
  // Reads before this write need no order with anything later.
  for (int g = 0; g < static_cast<int>(fibers_.size()); ++g) forget_nothing(read_bit(r, g));
}

// A new event: only `except_fiber` knows of it.
void Explorer::forget(int bit, int except_fiber) {
  for (auto& fiber : fibers_) {
    if (fiber->id != except_fiber) fiber->live.known.clear(bit);
  }
  fibers_[except_fiber]->live.known.set(bit);
  for (Knowledge& word : words_) word.clear(bit);
}

// An event that no longer matters: one value for all, so that states meet.
void Explorer::forget_nothing(int bit) {
  for (auto& fiber : fibers_) fiber->live.known.set(bit);
  for (Knowledge& word : words_) word.clear(bit);
}

Knowledge& Explorer::word_knowledge(const void* word) {
  uint16_t& index = word_index_[offset_of(word) / 4];
  if (index == 0) {
    EXPERTPLEX_CHECK(words_.size() < kMaxWords);
    words_.emplace_back();
    index = static_cast<uint16_t>(words_.size());
  }
  return words_[index - 1];
}

void Explorer::learn(const void* word, Order order) {
  if (order != Order::kAcquire && order != Order::kAcquireRelease) return;
  const Knowledge& published = word_knowledge(word);
  Knowledge& known = fibers_[running_]->live.known;
  for (int i = 0; i < Knowledge::kWords; ++i) known.words[i] |= published.words[i];
}

// What a store (replaces) or an RMW (continues the release sequence) publishes.
void Explorer::publish(const void* word, Order order, bool is_rmw) {
  const bool releases = order == Order::kRelease || order == Order::kAcquireRelease;
  if (is_rmw && !releases) return;
  Knowledge& published = word_knowledge(word);
  Knowledge known;
  if (releases) known = fibers_[running_]->live.known;
  for (int i = 0; is_rmw && i < Knowledge::kWords; ++i) known.words[i] |= published.words[i];
  published = known;
}

}  // namespace expertplex::apk
