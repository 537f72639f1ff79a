#include "bench/cuda/apk_bench.h"

#include <fstream>
#include <span>

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

bool chosen(const std::string& part, const char* name) {
  return std::string_view(name).find(part) != std::string_view::npos;
}

// Refuses an option that chooses nothing.
template <typename Named>
Result<void> check_choice(const char* option, const std::string& part,
                          std::span<const Named> known) {
  std::string names;
  for (const Named& n : known) {
    if (chosen(part, n.name)) return {};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", n.name);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: nothing contains \"{}\"; expected a part of {}", option, part, names);
}

}  // namespace

Result<void> run_apk_bench(const ApkBenchOptions& options) {
  EXPERTPLEX_TRY(check_choice("--only", options.only, std::span<const Section>(kSections)));
  EXPERTPLEX_TRY(check_choice("--shape", options.shape, std::span<const GemmName>(kShapes)));
  EXPERTPLEX_ASSIGN(const cudaDeviceProp device, find_hopper());
  BenchRows rows("expertplex bench apk");
  for (const Section& section : kSections) {
    if (!chosen(options.only, section.name)) continue;
    for (const GemmName& shape : kShapes) {
      if (!chosen(options.shape, shape.name)) continue;
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
