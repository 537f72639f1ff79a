#include "api/unique_id.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <random>

#include "base/random.h"

namespace expertplex {
namespace {

uint64_t entropy() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

std::string unique_id(std::string_view prefix) {
  static const uint64_t process_seed = entropy();
  static std::atomic<uint64_t> counter{0};
  const uint64_t number = counter.fetch_add(1, std::memory_order_relaxed);
  const uint64_t scattered = Random(process_seed ^ number).next();
  return fmt::format("{}{:016x}{:08x}", prefix, scattered, static_cast<uint32_t>(number));
}

}  // namespace expertplex
