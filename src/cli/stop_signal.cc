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

std::atomic<Nanoseconds> first_at{0};
int event = -1;

// Async-signal-safe calls only.
void on_signal(int) {
  const Nanoseconds now = now_ns();
  Nanoseconds first = 0;
  if (!first_at.compare_exchange_strong(first, now)) {
    if (now - first >= StopSignal::kPatience) _exit(1);
    return;
  }
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
  // nohup has it ignored, and so it stays then.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

bool StopSignal::wait(Nanoseconds limit) {
  pollfd entry{event, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit / kMillisecond)) > 0;
}

}  // namespace expertplex::cli
