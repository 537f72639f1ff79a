// StopSignal: SIGINT and SIGTERM as something to wait for. The first one is reported; the second
// one ends the process at once with exit code 1.
//
// Thread rules: install once, wait from one thread.
#pragma once

#include "base/clock.h"

namespace expertplex::cli {

class StopSignal {
 public:
  static void install();
  // True once a signal has come; false after `limit`.
  static bool wait(Nanoseconds limit);
};

}  // namespace expertplex::cli
