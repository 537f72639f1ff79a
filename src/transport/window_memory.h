// What a window in coherent memory is made of, for the fabrics of one machine: a header (abort
// word, bells) and the data behind it. The fabrics differ only in where the bytes come from.
//
// Layout of the mapping: one page with the WindowHeader, then the data, 4096-byte aligned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/window.h"

namespace expertplex::transport {

constexpr size_t kWindowHeaderBytes = 4096;
constexpr int kMaxBells = 32;
constexpr size_t kMaxWindowNameBytes = 96;
constexpr Nanoseconds kSpinBeforePark = 20 * kMicrosecond;

// A park position. A wake-up cannot be lost:
//   waiter:    ticket = rings; look at the words; ++sleepers; futex_wait(rings == ticket)
//   signaller: write the word; ++rings; if (sleepers > 0) futex_wake
// All four accesses to `rings` and `sleepers` are sequentially consistent. If the signaller reads
// sleepers == 0, its ++rings stands before the waiter's ++sleepers in their total order, so the
// waiter's futex call compares with the new `rings` and returns. If it reads sleepers > 0 it wakes;
// a waiter that has counted itself but not yet gone to sleep is turned back by the same comparison,
// which the kernel makes under the lock that the wake takes too. If the ticket was taken after
// ++rings, the look that follows it sees the word (++rings is a release, the ticket an acquire).
struct alignas(64) Bell {
  // Writer: every signaller (fetch_add, seq_cst). Reader: waiters (seq_cst) and the kernel. Whoever
  // sees a ring sees the words written before it.
  std::atomic<uint32_t> rings;
  // Writer: waiters, around their sleep (seq_cst). Reader: signallers. So a signal makes no system
  // call while nobody sleeps.
  std::atomic<uint32_t> sleepers;
};

struct WindowHeader {
  uint64_t magic;  // written last by the owner, before the name is published
  uint64_t data_bytes;
  uint32_t bell_count;
  // Writer: anyone, once (0 -> 1, release), then rings every bell. Reader: every waiter (acquire).
  std::atomic<uint32_t> aborted;
  char name[kMaxWindowNameBytes];
  Bell bells[kMaxBells];
};
static_assert(sizeof(WindowHeader) <= kWindowHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr size_t window_mapping_bytes(size_t data_bytes) {
  return kWindowHeaderBytes + ((data_bytes + 4095) & ~size_t{4095});
}

// A mapping, unmapped on destruction.
class WindowMemory {
 public:
  // Takes over `bytes` at `base`, from mmap.
  WindowMemory(void* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~WindowMemory();
  WindowMemory(const WindowMemory&) = delete;
  WindowMemory& operator=(const WindowMemory&) = delete;

  WindowHeader& header() const { return *static_cast<WindowHeader*>(base_); }
  std::byte* data() const { return static_cast<std::byte*>(base_) + kWindowHeaderBytes; }

  // Fills the header of zeroed memory.
  void initialize(const std::string& name, size_t data_bytes, int bells);
  // Whether a header that another process wrote is the one of that window and fits the mapping.
  bool valid(const std::string& name) const;

 private:
  void* base_;
  size_t bytes_;
};

// Checks the arguments of create_window.
Result<void> check_window_request(const std::string& name, size_t bytes, int bells);

// The window over such memory. `registration` is dropped with the window (the owner's one frees the
// name).
class MemoryWindow final : public Window {
 public:
  MemoryWindow(const std::string& name, std::shared_ptr<WindowMemory> memory,
               std::shared_ptr<void> registration);

  void put(size_t offset, const void* source, size_t bytes) override;
  void get(void* destination, size_t offset, size_t bytes) const override;
  void signal(size_t word_offset, uint64_t value, int bell) override;
  uint32_t reserve(size_t word_offset, uint32_t epoch, uint32_t count) override;
  uint64_t load(size_t word_offset) const override;
  Result<uint64_t> wait(size_t word_offset, int bell, const std::function<bool(uint64_t)>& ready,
                        const WaitSpec& spec) const override;
  uint32_t bell_ticket(int bell) const override;
  void park(int bell, uint32_t ticket, Nanoseconds limit) const override;
  void ring(int bell) override;
  void raise_abort() override;
  bool aborted() const override;
  std::byte* local_data() override { return memory_->data(); }

 private:
  uint64_t& word(size_t offset) const;
  Bell& bell_at(int bell) const;
  std::byte* range(size_t offset, size_t bytes) const;

  std::shared_ptr<WindowMemory> memory_;
  std::shared_ptr<void> registration_;
};

}  // namespace expertplex::transport
