// Both fabrics behind one name, for typed tests.
#pragma once

#include <memory>

#include "transport/in_process_fabric.h"
#include "transport/shared_memory_fabric.h"

namespace expertplex::transport {

struct InProcess {
  static std::unique_ptr<Fabric> make() { return std::make_unique<InProcessFabric>(); }
};

struct SharedMemory {
  static std::unique_ptr<Fabric> make() {
    return std::move(*SharedMemoryFabric::create(SharedMemoryFabric::unique_name()));
  }
};

}  // namespace expertplex::transport
