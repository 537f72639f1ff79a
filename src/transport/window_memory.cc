#include "transport/window_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/check.h"
#include "base/futex.h"

namespace expertplex::transport {
namespace {

constexpr uint64_t kWindowMagic = 0x31574f444e495745;  // "EWINDOW1"

Error wait_error(ErrorCode code, const char* what, const Window& window, size_t offset,
                 uint64_t seen_bits, Nanoseconds waited, const WaitSpec& spec) {
  const WordValue seen = unpack(seen_bits);
  return make_error(
      code,
      "{} {} after {:.3f} s for {} (window '{}', byte {}): expected {{epoch {}, value "
      "{}}}, seen {{epoch {}, value {}}}",
      spec.waiter, what, to_seconds(waited), spec.word, window.name(), offset, spec.expected.epoch,
      spec.expected.value, seen.epoch, seen.value);
}

}  // namespace

WindowMemory::~WindowMemory() { munmap(base_, bytes_); }

void WindowMemory::initialize(const std::string& name, size_t data_bytes, int bells) {
  WindowHeader& h = header();
  h.data_bytes = data_bytes;
  h.bell_count = static_cast<uint32_t>(bells);
  std::memcpy(h.name, name.c_str(), name.size() + 1);
  h.magic = kWindowMagic;
}

bool WindowMemory::valid(const std::string& name) const {
  const WindowHeader& h = header();
  return h.magic == kWindowMagic && h.bell_count >= 1 && h.bell_count <= kMaxBells &&
         h.data_bytes <= bytes_ && window_mapping_bytes(h.data_bytes) == bytes_ &&
         std::strncmp(h.name, name.c_str(), kMaxWindowNameBytes) == 0;
}

Result<void> check_window_request(const std::string& name, size_t bytes, int bells) {
  const bool clean = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (name.empty() || name.size() >= kMaxWindowNameBytes || !clean) {
    return make_error(ErrorCode::kInvalidArgument,
                      "window name '{}': expected 1 to {} letters, digits, '.', '_' or '-'", name,
                      kMaxWindowNameBytes - 1);
  }
  if (bytes == 0 || bytes > (size_t{1} << 46) || bells < 1 || bells > kMaxBells) {
    return make_error(ErrorCode::kInvalidArgument,
                      "window '{}': expected 1 to 2^46 bytes and 1 to {} bells, got {} and {}",
                      name, kMaxBells, bytes, bells);
  }
  return {};
}

MemoryWindow::MemoryWindow(const std::string& name, std::shared_ptr<WindowMemory> memory,
                           std::shared_ptr<void> registration)
    : Window(name, memory->header().data_bytes),
      memory_(std::move(memory)),
      registration_(std::move(registration)) {}

std::byte* MemoryWindow::range(size_t offset, size_t count) const {
  EXPERTPLEX_CHECK(offset <= bytes() && count <= bytes() - offset,
                   "window '{}': bytes [{}, {} + {}) of {}", name(), offset, offset, count,
                   bytes());
  return memory_->data() + offset;
}

uint64_t& MemoryWindow::word(size_t offset) const {
  EXPERTPLEX_CHECK(offset % sizeof(uint64_t) == 0, "window '{}': word at byte {}", name(), offset);
  return *reinterpret_cast<uint64_t*>(range(offset, sizeof(uint64_t)));
}

Bell& MemoryWindow::bell_at(int bell) const {
  WindowHeader& header = memory_->header();
  EXPERTPLEX_CHECK(bell >= 0 && bell < static_cast<int>(header.bell_count),
                   "window '{}': bell {} of {}", name(), bell, header.bell_count);
  return header.bells[bell];
}

void MemoryWindow::put(size_t offset, const void* source, size_t count) {
  if (count > 0) std::memcpy(range(offset, count), source, count);
}

void MemoryWindow::get(void* destination, size_t offset, size_t count) const {
  if (count > 0) std::memcpy(destination, range(offset, count), count);
}

void MemoryWindow::signal(size_t word_offset, uint64_t value, int bell) {
  std::atomic_ref<uint64_t>(word(word_offset)).store(value, std::memory_order_release);
  ring(bell);
}

uint32_t MemoryWindow::reserve(size_t word_offset, uint32_t epoch, uint32_t count) {
  std::atomic_ref<uint64_t> counter(word(word_offset));
  uint64_t bits = counter.load(std::memory_order_acquire);
  while (true) {
    const WordValue seen = unpack(bits);
    if (bits != 0 && epoch_after(seen.epoch, epoch)) return kStaleReservation;
    const uint32_t before = seen.epoch == epoch ? seen.value : 0;
    if (counter.compare_exchange_weak(bits, pack({epoch, before + count}),
                                      std::memory_order_acq_rel, std::memory_order_acquire)) {
      return before;
    }
  }
}

uint64_t MemoryWindow::load(size_t word_offset) const {
  return std::atomic_ref<uint64_t>(word(word_offset)).load(std::memory_order_acquire);
}

Result<uint64_t> MemoryWindow::wait(size_t word_offset, int bell,
                                    const std::function<bool(uint64_t)>& ready,
                                    const WaitSpec& spec) const {
  const Nanoseconds start = now_ns();
  while (true) {
    const uint32_t ticket = bell_ticket(bell);
    const uint64_t seen = load(word_offset);
    if (ready(seen)) return seen;
    const Nanoseconds waited = now_ns() - start;
    if (aborted() || (spec.abort != nullptr && spec.abort->load(std::memory_order_acquire) != 0)) {
      return wait_error(ErrorCode::kCancelled, "stopped waiting (abort)", *this, word_offset, seen,
                        waited, spec);
    }
    if (waited >= spec.limit) {
      return wait_error(ErrorCode::kDeadlineExceeded, "gave up waiting", *this, word_offset, seen,
                        waited, spec);
    }
    if (waited < kSpinBeforePark) {
      spin_pause();
    } else {
      park(bell, ticket, spec.limit - waited);
    }
  }
}

uint32_t MemoryWindow::bell_ticket(int bell) const {
  return bell_at(bell).rings.load(std::memory_order_seq_cst);
}

void MemoryWindow::park(int bell, uint32_t ticket, Nanoseconds limit) const {
  if (limit <= 0) return;
  Bell& b = bell_at(bell);
  b.sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex_wait(b.rings, ticket, limit);
  b.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void MemoryWindow::ring(int bell) {
  Bell& b = bell_at(bell);
  b.rings.fetch_add(1, std::memory_order_seq_cst);
  if (b.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(b.rings);
}

void MemoryWindow::raise_abort() {
  WindowHeader& header = memory_->header();
  header.aborted.store(1, std::memory_order_release);
  for (int bell = 0; bell < static_cast<int>(header.bell_count); ++bell) ring(bell);
}

bool MemoryWindow::aborted() const {
  return memory_->header().aborted.load(std::memory_order_acquire) != 0;
}

}  // namespace expertplex::transport
