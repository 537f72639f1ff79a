#include "bench/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"
#include "bench/load_client.h"

namespace expertplex::bench {
namespace {

constexpr Nanoseconds kStartLimit = 30 * kSecond;

// Reads the child's output until it names its port ("http://127.0.0.1:PORT"), or the limit passes.
Result<int> read_port(int output, const std::string& host) {
  const std::string marker = "http://" + host + ":";
  std::string text;
  const Nanoseconds until = now_ns() + kStartLimit;
  for (Nanoseconds now = now_ns(); now < until; now = now_ns()) {
    pollfd entry{output, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>((until - now) / kMillisecond) + 1) <= 0) continue;
    char buffer[4096];
    const ssize_t count = read(output, buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
    const size_t at = text.find(marker);
    if (at != std::string::npos &&
        text.find_first_not_of("0123456789", at + marker.size()) != std::string::npos) {
      return std::stoi(text.substr(at + marker.size()));
    }
  }
  return make_error(ErrorCode::kUnavailable, "the server did not come up; its output was:\n{}",
                    text);
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(
    const std::string& binary, const std::vector<std::string>& arguments) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kInternal, "pipe: {}", std::strerror(errno));
  }
  std::vector<std::string> words = {binary, "serve", "--port", "0"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  std::unique_ptr<ServerProcess> server(new ServerProcess);
  server->output_ = pipes[0];
  server->pid_ = fork();
  if (server->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphan if the bench is killed
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  close(pipes[1]);
  if (server->pid_ < 0) return make_error(ErrorCode::kInternal, "fork: {}", std::strerror(errno));
  EXPERTPLEX_ASSIGN(server->port_, read_port(server->output_, server->host_));
  EXPERTPLEX_TRY(http_get(server->host_, server->port_, "/health", kStartLimit));
  // The pipe is no longer read: what the server logs from now on must not block it.
  fcntl(server->output_, F_SETPIPE_SZ, 1 << 20);
  return server;
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    // Reading to the end of the output waits for the child's exit; a child that hangs is killed.
    const Nanoseconds until = now_ns() + kStartLimit;
    char buffer[4096];
    for (;;) {
      pollfd entry{output_, POLLIN, 0};
      const Nanoseconds left = until - now_ns();
      if (left <= 0 || poll(&entry, 1, static_cast<int>(left / kMillisecond)) <= 0) {
        kill(pid_, SIGKILL);
        break;
      }
      if (read(output_, buffer, sizeof buffer) <= 0) break;
    }
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
}

}  // namespace expertplex::bench
