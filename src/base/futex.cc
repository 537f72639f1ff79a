#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace expertplex {
namespace {

const uint32_t* address_of(const std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<const uint32_t*>(&word);
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Nanoseconds limit) {
  const timespec timeout{static_cast<time_t>(limit / kSecond), static_cast<long>(limit % kSecond)};
  // Not FUTEX_PRIVATE: windows may be shared between processes.
  syscall(SYS_futex, address_of(word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, address_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace expertplex
