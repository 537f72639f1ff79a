#include "bench/cuda/apk_bench.h"

#include "bench/cuda/apk_sections.h"

namespace expertplex::bench {
namespace {

struct Section {
  const char* name;
  Result<void> (*run)(const GemmName&, BenchRows&);
};
constexpr Section kSections[] = {{"delay", measure_delay}, {"alone", measure_alone}};
constexpr GemmName kShapes[] = {kGlmGateUp, kMiniMaxGateUp};

Result<std::string> gpu_name() {
  cudaDeviceProp device;
  EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
  return fmt::format("{}, {} SMs", device.name, device.multiProcessorCount);
}

}  // namespace

Result<void> run_apk_bench(const ApkBenchOptions& options) {
  BenchRows rows("expertplex bench apk");
  for (const Section& section : kSections) {
    if (std::string(section.name).find(options.only) == std::string::npos) continue;
    for (const GemmName& shape : kShapes) {
      if (std::string(shape.name).find(options.shape) == std::string::npos) continue;
      fmt::print("-- {} {}\n", section.name, shape.name);
      EXPERTPLEX_TRY(section.run(shape, rows));
    }
  }
  if (options.summary.empty()) return {};
  EXPERTPLEX_ASSIGN(const std::string gpu, gpu_name());
  return update_summary(options.summary, rows.rows(), options.commit, gpu);
}

}  // namespace expertplex::bench
