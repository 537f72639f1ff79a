#include "bench/cuda/apk_bench.h"

#include <fstream>

#include "bench/cuda/apk_sections.h"
#include "bench/cuda/hopper.h"

namespace expertplex::bench {
namespace {

struct Section {
  const char* name;
  Result<void> (*run)(const GemmName&, BenchRows&);
};
constexpr Section kSections[] = {{"alone", measure_alone},
                                 {"delay", measure_delay},
                                 {"sharing", measure_sharing},
                                 {"saturation", measure_saturation},
                                 {"footprint", measure_footprint}};
constexpr GemmName kShapes[] = {kGlmGateUp, kMiniMaxGateUp};

Result<void> write_points(const std::string& path, const std::vector<PlotPoint>& points) {
  std::string text = "plot,series,label,x,y\n";
  for (const PlotPoint& p : points) {
    text += fmt::format("{},{},{},{:.3f},{:.3f}\n", p.plot, p.series, p.label, p.x, p.y);
  }
  std::ofstream file(path);
  file << text;
  file.flush();
  if (file) return {};
  return make_error(ErrorCode::kUnavailable, "{}: cannot be written", path);
}

}  // namespace

Result<void> run_apk_bench(const ApkBenchOptions& options) {
  EXPERTPLEX_ASSIGN(const cudaDeviceProp device, find_hopper());
  BenchRows rows("expertplex bench apk");
  for (const Section& section : kSections) {
    if (std::string(section.name).find(options.only) == std::string::npos) continue;
    for (const GemmName& shape : kShapes) {
      if (std::string(shape.name).find(options.shape) == std::string::npos) continue;
      fmt::print("-- {} {}\n", section.name, shape.name);
      EXPERTPLEX_TRY(section.run(shape, rows));
    }
  }
  if (!options.points.empty()) EXPERTPLEX_TRY(write_points(options.points, rows.points()));
  if (options.summary.empty()) return {};
  return update_summary(options.summary, rows.rows(), options.commit,
                        fmt::format("{}, {} SMs", device.name, device.multiProcessorCount));
}

}  // namespace expertplex::bench
