#include "bench/cuda/mps_sharing.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "bench/cuda/mps_page.h"

namespace expertplex::bench {
namespace {

constexpr Nanoseconds kClientLimit = 120 * kSecond;

// The page in memory that children inherit by its descriptor.
class SharedPage {
 public:
  static Result<SharedPage> make() {
    SharedPage page;
    page.descriptor_ = memfd_create("expertplex-mps", 0);
    if (page.descriptor_ < 0 || ftruncate(page.descriptor_, sizeof(MpsPage)) != 0) {
      return make_error(ErrorCode::kInternal, "memfd_create: {}", std::strerror(errno));
    }
    void* memory =
        mmap(nullptr, sizeof(MpsPage), PROT_READ | PROT_WRITE, MAP_SHARED, page.descriptor_, 0);
    if (memory == MAP_FAILED) {
      return make_error(ErrorCode::kInternal, "mmap: {}", std::strerror(errno));
    }
    page.page_ = new (memory) MpsPage();
    return page;
  }
  SharedPage(SharedPage&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        page_(std::exchange(other.page_, nullptr)) {}
  SharedPage& operator=(SharedPage&&) = delete;
  ~SharedPage() {
    if (page_ != nullptr) munmap(page_, sizeof(MpsPage));
    if (descriptor_ >= 0) close(descriptor_);
  }
  MpsPage& operator*() const { return *page_; }
  MpsPage* operator->() const { return page_; }
  int descriptor() const { return descriptor_; }

 private:
  SharedPage() = default;
  int descriptor_ = -1;
  MpsPage* page_ = nullptr;
};

// This program again, as a client with a percentage of the SMs. It holds one end of a pipe, whose
// other end hangs up when it has left.
class Client {
 public:
  static Result<Client> start(const std::string& folder, int descriptor, const char* phase,
                              uint32_t percent) {
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) != 0) {
      return make_error(ErrorCode::kInternal, "pipe: {}", std::strerror(errno));
    }
    const std::string page = std::to_string(descriptor), share = std::to_string(percent);
    Client client;
    client.pipe_ = pipes[0];
    client.pid_ = fork();
    if (client.pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      fcntl(pipes[1], F_SETFD, 0);
      setenv("CUDA_MPS_PIPE_DIRECTORY", folder.c_str(), 1);
      setenv("CUDA_MPS_LOG_DIRECTORY", folder.c_str(), 1);
      setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share.c_str(), 1);
      execl("/proc/self/exe", "expertplex", "bench", "mps-client", "--page", page.c_str(),
            "--phase", phase, static_cast<char*>(nullptr));
      _exit(127);
    }
    close(pipes[1]);
    if (client.pid_ < 0) {
      return make_error(ErrorCode::kInternal, "fork: {}", std::strerror(errno));
    }
    return client;
  }
  Client(Client&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  Client& operator=(Client&&) = delete;
  ~Client() { leave(); }

  int pipe() const { return pipe_; }
  // Kills it if it still runs. True: it had left with status 0.
  bool leave() {
    if (pid_ <= 0) return false;
    char byte;
    pollfd entry{pipe_, POLLIN, 0};
    if (poll(&entry, 1, 0) <= 0 || read(pipe_, &byte, 1) != 0) kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    close(pipe_);
    pid_ = pipe_ = -1;
    return status == 0;
  }

 private:
  Client() = default;
  pid_t pid_ = -1;
  int pipe_ = -1;
};

// Until both have left, one has failed, or the limit has passed; who is left over is killed.
bool wait_for_clients(Client& prefill, Client& decode) {
  const Nanoseconds until = now_ns() + kClientLimit;
  Client* running[2] = {&prefill, &decode};
  for (int count = 2; count > 0;) {
    pollfd entries[2];
    for (int i = 0; i < count; ++i) entries[i] = {running[i]->pipe(), POLLIN, 0};
    const Nanoseconds left = std::max<Nanoseconds>(0, until - now_ns());
    if (poll(entries, static_cast<nfds_t>(count), static_cast<int>(left / kMillisecond)) <= 0) {
      return false;
    }
    const int ended = entries[0].revents != 0 ? 0 : 1;
    if (!running[ended]->leave()) return false;
    running[ended] = running[--count];
  }
  return true;
}

SharedTimes times_of(const MpsPage& page, MpsKind kind) {
  SharedTimes times;
  times.prefill_us.assign(page.prefill_us[kind], page.prefill_us[kind] + page.prefills);
  times.decode_us.assign(page.decode_us[kind], page.decode_us[kind] + page.decodes[kind]);
  return times;
}

int control(const std::string& folder, const std::string& command) {
  const std::string line = fmt::format(
      "CUDA_MPS_PIPE_DIRECTORY={0} CUDA_MPS_LOG_DIRECTORY={0} {1} >{0}/control.txt 2>&1", folder,
      command);
  return std::system(line.c_str());
}

}  // namespace

Result<std::unique_ptr<MpsDaemon>> MpsDaemon::start() {
  char folder[] = "/tmp/expertplex-mps-XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    return make_error(ErrorCode::kUnavailable, "{}: {}", folder, std::strerror(errno));
  }
  std::unique_ptr<MpsDaemon> daemon(new MpsDaemon(folder));
  const int status = control(folder, "nvidia-cuda-mps-control -d");
  if (status != 0) {
    return make_error(ErrorCode::kUnavailable, "nvidia-cuda-mps-control -d: status {}",
                      WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return daemon;
}

MpsDaemon::~MpsDaemon() {
  control(folder_, "sh -c 'echo quit | nvidia-cuda-mps-control'");
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Result<MpsTimes> MpsDaemon::run(const MpsRun& run) const {
  EXPERTPLEX_CHECK(run.prefills <= kMpsMostPrefills, "{} prefills", run.prefills);
  EXPERTPLEX_ASSIGN(const SharedPage page, SharedPage::make());
  page->shape = run.shape;
  std::strncpy(page->model, run.shape.name, sizeof(page->model) - 1);
  std::strncpy(page->gemm, run.shape.gemm, sizeof(page->gemm) - 1);
  page->decode_rows = run.decode_rows;
  page->prefills = run.prefills;
  page->first_us = run.first_us;
  page->every_us[kMpsOften] = run.often_us;
  EXPERTPLEX_ASSIGN(Client prefill, Client::start(folder_, page.descriptor(), "prefill",
                                                  100 - run.decode_percent));
  EXPERTPLEX_ASSIGN(Client decode,
                    Client::start(folder_, page.descriptor(), "decode", run.decode_percent));
  if (!wait_for_clients(prefill, decode)) {
    return make_error(ErrorCode::kUnavailable,
                      "mps, decode {} %: a client failed or took more than {} s; prefill: \"{}\", "
                      "decode: \"{}\"",
                      run.decode_percent, kClientLimit / kSecond, page->error[0], page->error[1]);
  }
  return MpsTimes{times_of(*page, kMpsOne),
                  times_of(*page, kMpsOften),
                  {page->saturated_prefill_us, page->saturated_decode_us}};
}

}  // namespace expertplex::bench
