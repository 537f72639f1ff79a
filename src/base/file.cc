#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace expertplex {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

Error cannot(const char* verb, const std::string& path, int number) {
  return make_error(ErrorCode::kNotFound, "{}: cannot {}: {}", path, verb, std::strerror(number));
}

// Reads until the file ends, or `size` bytes are there.
Result<std::string> read_all(int descriptor, const std::string& path, size_t size) {
  std::string text(size, '\0');
  size_t count = 0;
  while (count < size) {
    const ssize_t got = ::read(descriptor, text.data() + count, size - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path, errno);
    if (got == 0) break;
    count += static_cast<size_t>(got);
  }
  text.resize(count);
  return text;
}

}  // namespace

Result<int> open_regular_file(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return cannot("open", path, errno);
  struct stat info = {};
  if (::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) return descriptor;
  ::close(descriptor);
  return make_error(ErrorCode::kInvalidArgument, "{}: expected a regular file, got {}", path,
                    kind_of(info.st_mode));
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  EXPERTPLEX_ASSIGN(const int descriptor, open_regular_file(path));
  struct stat info = {};
  ::fstat(descriptor, &info);
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) {
    ::close(descriptor);
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: expected a file of at most {} bytes, got {}", path, max_bytes, size);
  }
  auto text = read_all(descriptor, path, size);
  ::close(descriptor);
  return text;
}

Result<bool> file_exists(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return cannot("open", path, errno);
}

}  // namespace expertplex
