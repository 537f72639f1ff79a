// Windows of one process: plain memory, found by name in a table.
//
// Thread rules: all members may be called from any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/window.h"
#include "transport/window_memory.h"

namespace expertplex::transport {

class InProcessFabric final : public Fabric {
 public:
  InProcessFabric() : table_(std::make_shared<Table>()) {}

  // kInvalidArgument for a bad name or size or a name in use, kResourceExhausted without memory.
  Result<std::shared_ptr<Window>> create_window(const std::string& name, size_t bytes,
                                                int bells) override;
  // kDeadlineExceeded when nobody has created it within `limit`.
  Result<std::shared_ptr<Window>> open_window(const std::string& name, Nanoseconds limit) override;

 private:
  // Owned together with the windows, which may outlive the fabric.
  struct Table {
    std::mutex mutex;
    std::condition_variable created;
    std::map<std::string, std::weak_ptr<WindowMemory>> windows;
  };
  std::shared_ptr<Table> table_;
};

}  // namespace expertplex::transport
