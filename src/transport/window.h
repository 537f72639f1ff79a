// One-sided transport: a server registers a *window* of memory once, peers put, get and signal into
// it, and nobody on the owner's side has to take part. The same interface stands over plain memory
// of one process (in_process_fabric.h) and over memory shared between processes
// (shared_memory_fabric.h); NVLink peers and NICs follow it later.
//
// Words. A word is 64 bits, {epoch:32, value:32}, written whole. `value` of a count word is count +
// 1, so that zero differs from not arrived. Words are never reset in flight: a reader waits for its
// epoch. Where a word is declared, it says writer, reader, order and what becomes visible.
//
// Order. `signal` is a release: everything the same thread put into the same window before it is
// visible to whoever sees the word through `load` or `wait` (acquire). put and get alone order
// nothing.
//
// Waiting. A waiter spins for some 20 us, then parks on one of the window's *bells*; every signal
// names the bell of those who may wait for the word. Every wait has a limit, ends early when an
// abort word is raised, and its error says who waited for which word, the value expected and the
// value seen.
//
// Lifetime. The window returned by create_window owns the name: when it is destroyed the name is
// free again, while the memory stays with the peers that still hold theirs.
//
// Thread rules: all members may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace expertplex::transport {

struct WordValue {
  uint32_t epoch = 0;
  uint32_t value = 0;
  bool operator==(const WordValue&) const = default;
};
constexpr uint64_t pack(WordValue w) { return (static_cast<uint64_t>(w.epoch) << 32) | w.value; }
constexpr WordValue unpack(uint64_t bits) {
  return {static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits)};
}
// Epochs wrap: a comes after b when the signed distance is positive.
constexpr bool epoch_after(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }

constexpr uint32_t kStaleReservation = UINT32_MAX;

// Who waits for what, and how long. The strings appear in the error and must outlive the wait.
struct WaitSpec {
  std::string_view waiter;  // "decode attention server 0"
  std::string_view word;    // "done word of MoE server 1"
  WordValue expected = {};  // shown in the error beside the value seen
  Nanoseconds limit = 10 * kSecond;
  // The waiter's own abort flag, beside the window's; may be null. Whoever raises it rings the
  // bell.
  const std::atomic<uint32_t>* abort = nullptr;
};

class Window {
 public:
  virtual ~Window() = default;

  const std::string& name() const { return name_; }
  size_t bytes() const { return bytes_; }

  // Copies into / out of the window. Offsets are checked.
  virtual void put(size_t offset, const void* source, size_t bytes) = 0;
  virtual void get(void* destination, size_t offset, size_t bytes) const = 0;

  // Publishes a word (release) and wakes those parked on `bell`.
  virtual void signal(size_t word_offset, uint64_t value, int bell) = 0;
  // Adds to the low 32 bits of an epoch-stamped counter and returns its value before: a counter
  // that still carries an older epoch counts as zero. A counter that carries a newer one is left as
  // it is and kStaleReservation comes back: the caller has been left behind. One remote atomic per
  // call.
  virtual uint32_t reserve(size_t word_offset, uint32_t epoch, uint32_t count) = 0;
  virtual uint64_t load(size_t word_offset) const = 0;  // acquire

  // Returns the first value of the word for which `ready` holds.
  virtual Result<uint64_t> wait(size_t word_offset, int bell,
                                const std::function<bool(uint64_t)>& ready,
                                const WaitSpec& spec) const = 0;

  // Parks until `bell` rings after `ticket` was taken, or the limit passes: for owners that look at
  // many words. Take a ticket, look, and only then park.
  virtual uint32_t bell_ticket(int bell) const = 0;
  virtual void park(int bell, uint32_t ticket, Nanoseconds limit) const = 0;
  virtual void ring(int bell) = 0;

  // Ends all waits on this window, for good, with kCancelled.
  virtual void raise_abort() = 0;
  virtual bool aborted() const = 0;

  // The memory itself. Only the owner computes in place; peers use put and get.
  virtual std::byte* local_data() = 0;

 protected:
  Window(std::string name, size_t bytes) : name_(std::move(name)), bytes_(bytes) {}

 private:
  std::string name_;
  size_t bytes_;
};

// Makes and finds windows by name. Names are unique per fabric.
class Fabric {
 public:
  virtual ~Fabric() = default;

  // Zeroed memory, 4096-byte aligned; `bells` is the number of park positions.
  virtual Result<std::shared_ptr<Window>> create_window(const std::string& name, size_t bytes,
                                                        int bells) = 0;
  // Waits up to `limit` for the owner to create it.
  virtual Result<std::shared_ptr<Window>> open_window(const std::string& name,
                                                      Nanoseconds limit) = 0;
};

}  // namespace expertplex::transport
