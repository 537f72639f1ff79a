// sizeof(SharedLayout<config>) for tests: host code cannot compile device/shared_layout.h.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/device/gemm_config.h"

namespace expertplex::cuda {

struct SharedLayoutSize {
  GemmConfig config;
  size_t bytes = 0;
};

// The compiled configurations, and others whose ring depths differ.
std::span<const SharedLayoutSize> shared_layout_sizes();

}  // namespace expertplex::cuda
