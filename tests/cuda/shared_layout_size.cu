#include "cuda/device/shared_layout.h"
#include "cuda/shared_layout_size.h"

namespace expertplex::cuda {
namespace {

template <GemmConfig kConfig>
constexpr SharedLayoutSize size_of() {
  return {kConfig, sizeof(SharedLayout<kConfig>)};
}

constexpr GemmConfig stages(uint32_t main, uint32_t resident) {
  GemmConfig config;
  config.main_stages = main;
  config.resident_stages = resident;
  return config;
}

constexpr GemmConfig kMainOnly{.main_stages = 4,
                               .resident_stages = 0,
                               .producer_registers = 56,
                               .math_registers = 224,
                               .resident_registers = 0};

constexpr SharedLayoutSize kSizes[] = {
    size_of<GemmConfig{}>(), size_of<kMainOnly>(),    size_of<stages(3, 0)>(),
    size_of<stages(3, 1)>(), size_of<stages(3, 3)>(), size_of<stages(3, 5)>(),
    size_of<stages(3, 7)>(), size_of<stages(4, 2)>(), size_of<stages(4, 8)>(),
    size_of<stages(5, 0)>(), size_of<stages(6, 4)>(), size_of<stages(7, 6)>(),
};

}  // namespace

std::span<const SharedLayoutSize> shared_layout_sizes() { return kSizes; }

}  // namespace expertplex::cuda
