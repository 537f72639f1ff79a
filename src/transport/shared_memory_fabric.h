// Windows shared between the processes of one machine.
//
// The memory of a window is a memfd of its owner: it has no name in any file system, is not bounded
// by the size of /dev/shm, and the kernel frees it with the last process that maps it, also after
// kill -9. What has a name is a line of text, /dev/shm/expertplex.<fabric>.<window>, "<pid> <fd>
// <bytes>": a peer opens /proc/<pid>/fd/<fd> (same user, same pid namespace). The owner holds an
// exclusive flock on that file as long as it lives; a name whose lock can be had is a leftover of a
// killed process: open_window treats it as absent, create_window and the next fabric remove it.
//
// Thread rules: all members may be called from any thread. A process that forks must exec or exit
// before it uses the child's copy.
#pragma once

#include <memory>
#include <string>

#include "transport/window.h"

namespace expertplex::transport {

class SharedMemoryFabric final : public Fabric {
 public:
  // Processes with the same `fabric_name` (letters, digits, '.', '_', '-') see each other's
  // windows.
  static Result<std::unique_ptr<SharedMemoryFabric>> create(const std::string& fabric_name);
  // A name that no other running process uses.
  static std::string unique_name();

  // kInvalidArgument for a bad name or size or a name in use, kResourceExhausted without memory.
  Result<std::shared_ptr<Window>> create_window(const std::string& name, size_t bytes,
                                                int bells) override;
  // kDeadlineExceeded when no living process has created it within `limit`.
  Result<std::shared_ptr<Window>> open_window(const std::string& name, Nanoseconds limit) override;

 private:
  explicit SharedMemoryFabric(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string path_of(const std::string& window) const { return prefix_ + window; }

  std::string prefix_;  // "/dev/shm/expertplex.<fabric>."
};

}  // namespace expertplex::transport
