// CpuBackend: executors that run on CPU threads, with the widest kernel set of the machine.
//
// Thread rules: immutable; create_* may be called from any thread.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace expertplex::cpu {

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace expertplex::cpu
