#include "transport/in_process_fabric.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace expertplex::transport {

Result<std::shared_ptr<Window>> InProcessFabric::create_window(const std::string& name,
                                                               size_t bytes, int bells) {
  EXPERTPLEX_TRY(check_window_request(name, bytes, bells));
  const size_t mapping_bytes = window_mapping_bytes(bytes);
  std::lock_guard lock(table_->mutex);
  if (table_->windows.contains(name)) {
    return make_error(ErrorCode::kInvalidArgument, "window '{}' exists already", name);
  }
  void* base =
      mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return make_error(ErrorCode::kResourceExhausted, "window '{}': no memory for {} bytes: {}",
                      name, mapping_bytes, std::strerror(errno));
  }
  auto memory = std::make_shared<WindowMemory>(base, mapping_bytes);
  memory->initialize(name, bytes, bells);
  table_->windows[name] = memory;
  table_->created.notify_all();
  std::shared_ptr<void> registration(nullptr, [table = table_, name](void*) {
    std::lock_guard lock(table->mutex);
    table->windows.erase(name);
  });
  return std::shared_ptr<Window>(
      std::make_shared<MemoryWindow>(name, std::move(memory), std::move(registration)));
}

Result<std::shared_ptr<Window>> InProcessFabric::open_window(const std::string& name,
                                                             Nanoseconds limit) {
  std::unique_lock lock(table_->mutex);
  std::shared_ptr<WindowMemory> memory;
  const bool found = table_->created.wait_for(lock, std::chrono::nanoseconds(limit), [&] {
    const auto it = table_->windows.find(name);
    return it != table_->windows.end() && (memory = it->second.lock()) != nullptr;
  });
  if (!found) {
    return make_error(ErrorCode::kDeadlineExceeded, "window '{}' was not created within {:.3f} s",
                      name, to_seconds(limit));
  }
  return std::shared_ptr<Window>(std::make_shared<MemoryWindow>(name, std::move(memory), nullptr));
}

}  // namespace expertplex::transport
