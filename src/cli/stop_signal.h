// StopSignal: SIGINT, SIGTERM and SIGHUP as something to wait for. The first one is reported;
// another one, at least kPatience later, ends the process at once with exit code 1. What comes
// sooner is the same wish said twice: a terminal and a supervisor both pass a Ctrl-C on.
//
// Thread rules: install once, wait from one thread.
#pragma once

#include "base/clock.h"

namespace expertplex::cli {

class StopSignal {
 public:
  static constexpr Nanoseconds kPatience = kSecond;

  static void install();
  // True once a signal has come; false after `limit`.
  static bool wait(Nanoseconds limit);
};

}  // namespace expertplex::cli
