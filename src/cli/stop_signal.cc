#include "cli/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace expertplex::cli {
namespace {

std::atomic<int> signal_count{0};
int event = -1;

// Async-signal-safe calls only.
void on_signal(int) {
  if (signal_count.fetch_add(1) > 0) _exit(1);
  const int saved_errno = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
  errno = saved_errno;
}

}  // namespace

void StopSignal::install() {
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  EXPERTPLEX_CHECK(event >= 0);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool StopSignal::wait(Nanoseconds limit) {
  pollfd entry{event, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit / kMillisecond)) > 0;
}

}  // namespace expertplex::cli
