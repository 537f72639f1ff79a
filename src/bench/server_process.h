// A server of our own binary in a child process, for benches: started, waited for until it is
// ready, and ended with SIGTERM.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace expertplex::bench {

class ServerProcess {
 public:
  // Runs `binary serve --port 0 arguments...` and waits until /health answers 200.
  static Result<std::unique_ptr<ServerProcess>> start(const std::string& binary,
                                                      const std::vector<std::string>& arguments);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& host() const { return host_; }
  int port() const { return port_; }

 private:
  ServerProcess() = default;
  pid_t pid_ = -1;
  int output_ = -1;  // read end of the child's stdout and stderr
  std::string host_ = "127.0.0.1";
  int port_ = 0;
};

}  // namespace expertplex::bench
