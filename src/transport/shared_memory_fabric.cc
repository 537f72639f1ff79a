#include "transport/shared_memory_fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "transport/window_memory.h"

namespace expertplex::transport {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr const char* kFilePrefix = "expertplex.";
constexpr int kPublishAttempts = 1000;
constexpr int kLookIntervalMs = 50;  // a missed directory event costs at most this

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

Error system_error(ErrorCode code, const std::string& what) {
  return make_error(code, "{}: {}", what, std::strerror(errno));
}

// Removes the name at `path` if its owner is dead. Only who holds the file's lock unlinks it, so a
// name that was published again in the meantime stays.
bool remove_if_stale(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.ok() || flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  struct stat opened {
  }, named{};
  if (fstat(file.get(), &opened) != 0 || lstat(path.c_str(), &named) != 0) return false;
  if (opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) return false;
  return unlink(path.c_str()) == 0;
}

void remove_stale_names() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory, ignored)) {
    if (entry.path().filename().string().rfind(kFilePrefix, 0) == 0) remove_if_stale(entry.path());
  }
}

Result<std::shared_ptr<WindowMemory>> map_memory(int fd, size_t mapping_bytes) {
  void* base = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return system_error(ErrorCode::kResourceExhausted,
                        fmt::format("cannot map {} bytes of shared memory", mapping_bytes));
  }
  return std::make_shared<WindowMemory>(base, mapping_bytes);
}

// Writes the name file, locks it and only then gives it its name: whoever finds a name finds it
// locked and whole. Returns the locked file.
Result<FileDescriptor> publish_name(const std::string& path, const std::string& text) {
  FileDescriptor file(open(kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.ok()) return system_error(ErrorCode::kUnavailable, "cannot make a file in /dev/shm");
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 ||
      write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return system_error(ErrorCode::kUnavailable, "cannot write a name in /dev/shm");
  }
  const std::string source = fmt::format("/proc/self/fd/{}", file.get());
  for (int attempt = 0; attempt < kPublishAttempts; ++attempt) {
    if (linkat(AT_FDCWD, source.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return file;
    }
    if (errno != EEXIST) return system_error(ErrorCode::kUnavailable, "cannot name " + path);
    // Another process may be removing the same leftover at this moment.
    if (!remove_if_stale(path)) sched_yield();
  }
  return make_error(ErrorCode::kInvalidArgument, "{} exists and its owner lives", path);
}

struct NameFile {
  long pid = 0;
  int fd = -1;
  size_t data_bytes = 0;
};

// What the name says, if it is there and its owner lives.
std::optional<NameFile> read_name(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.ok() || flock(file.get(), LOCK_SH | LOCK_NB) == 0) return std::nullopt;
  char text[96] = {};
  if (read(file.get(), text, sizeof(text) - 1) <= 0) return std::nullopt;
  NameFile name;
  if (std::sscanf(text, "%ld %d %zu", &name.pid, &name.fd, &name.data_bytes) != 3) {
    return std::nullopt;
  }
  return name;
}

// Maps the named memory; null if the name is absent, stale, or its owner is just going away.
std::shared_ptr<WindowMemory> try_open(const std::string& path, const std::string& window) {
  const auto name = read_name(path);
  if (!name) return nullptr;
  const std::string source = fmt::format("/proc/{}/fd/{}", name->pid, name->fd);
  FileDescriptor file(open(source.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  const size_t mapping_bytes = window_mapping_bytes(name->data_bytes);
  if (!file.ok() || fstat(file.get(), &status) != 0 ||
      static_cast<size_t>(status.st_size) != mapping_bytes) {
    return nullptr;
  }
  auto memory = map_memory(file.get(), mapping_bytes);
  if (!memory || !(*memory)->valid(window)) return nullptr;
  return *memory;
}

// What an owner holds: the memory's descriptor, which peers open, and the name. A forked child's
// copy leaves the name alone.
struct Registration {
  Registration(FileDescriptor memfd, FileDescriptor lock, std::string path, pid_t owner)
      : memfd(std::move(memfd)), lock(std::move(lock)), path(std::move(path)), owner(owner) {}
  ~Registration() {
    if (getpid() == owner) unlink(path.c_str());
  }

  FileDescriptor memfd, lock;
  std::string path;
  pid_t owner;
};

}  // namespace

Result<std::unique_ptr<SharedMemoryFabric>> SharedMemoryFabric::create(
    const std::string& fabric_name) {
  EXPERTPLEX_TRY(check_window_request(fabric_name, 1, 1));
  remove_stale_names();
  return std::unique_ptr<SharedMemoryFabric>(
      new SharedMemoryFabric(fmt::format("{}/{}{}.", kDirectory, kFilePrefix, fabric_name)));
}

std::string SharedMemoryFabric::unique_name() {
  static std::atomic<int> counter{0};
  return fmt::format("{}-{}", getpid(), counter.fetch_add(1));
}

Result<std::shared_ptr<Window>> SharedMemoryFabric::create_window(const std::string& name,
                                                                  size_t bytes, int bells) {
  EXPERTPLEX_TRY(check_window_request(name, bytes, bells));
  const size_t mapping_bytes = window_mapping_bytes(bytes);
  FileDescriptor memfd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!memfd.ok() || ftruncate(memfd.get(), static_cast<off_t>(mapping_bytes)) != 0) {
    return system_error(ErrorCode::kResourceExhausted,
                        fmt::format("window '{}': no {} bytes", name, mapping_bytes));
  }
  EXPERTPLEX_ASSIGN(auto memory, map_memory(memfd.get(), mapping_bytes));
  memory->initialize(name, bytes, bells);
  const std::string path = path_of(name);
  EXPERTPLEX_ASSIGN(FileDescriptor lock,
                    publish_name(path, fmt::format("{} {} {}\n", getpid(), memfd.get(), bytes)));
  auto registration =
      std::make_shared<Registration>(std::move(memfd), std::move(lock), path, getpid());
  return std::shared_ptr<Window>(
      std::make_shared<MemoryWindow>(name, std::move(memory), std::move(registration)));
}

Result<std::shared_ptr<Window>> SharedMemoryFabric::open_window(const std::string& name,
                                                                Nanoseconds limit) {
  EXPERTPLEX_TRY(check_window_request(name, 1, 1));
  const Nanoseconds deadline = now_ns() + limit;
  const std::string path = path_of(name);
  FileDescriptor events(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (events.ok()) inotify_add_watch(events.get(), kDirectory, IN_CREATE | IN_MOVED_TO);
  while (true) {
    if (auto memory = try_open(path, name)) {
      return std::shared_ptr<Window>(std::make_shared<MemoryWindow>(name, memory, nullptr));
    }
    const Nanoseconds left = deadline - now_ns();
    if (left <= 0) {
      return make_error(ErrorCode::kDeadlineExceeded,
                        "window '{}' was not created within {:.3f} s ({})", name, to_seconds(limit),
                        path);
    }
    pollfd descriptor{events.get(), POLLIN, 0};
    poll(&descriptor, 1,
         static_cast<int>(std::clamp<Nanoseconds>(left / kMillisecond, 1, kLookIntervalMs)));
    char drained[4096];
    while (events.ok() && read(events.get(), drained, sizeof(drained)) > 0) {
    }
  }
}

}  // namespace expertplex::transport
