// `expertplex bench`: measurements, each a subcommand.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/cpu_bench.h"
#include "cli/verbs.h"
#if EXPERTPLEX_CUDA
#include "bench/cuda/apk_bench.h"
#include "bench/cuda/gemm_bench.h"
#include "bench/cuda/mps_sharing.h"
#endif

namespace expertplex::cli {
namespace {

constexpr const char* kFooter =
    "\nExamples:\n"
    "  expertplex bench cpu                                  about two minutes on two cores\n"
    "  expertplex bench cpu --summary results/summary.json   what './dev bench' runs";

// The running binary, which the bench starts again as a server.
Result<std::string> own_path() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return make_error(ErrorCode::kInternal, "/proc/self/exe: cannot read");
  return std::string(path, static_cast<size_t>(length));
}

Result<void> run_cpu(bench::CpuBenchOptions options) {
  EXPERTPLEX_ASSIGN(options.binary, own_path());
  return bench::run_cpu_bench(options);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("bench", "Measure");
  verb->require_subcommand(1);
  verb->footer(kFooter);
  CLI::App* cpu = verb->add_subcommand(
      "cpu",
      "Throughput, time to first token and inter-token latency over HTTP, on the CPU backend");
  const auto options = std::make_shared<bench::CpuBenchOptions>();
  cpu->add_option("--model", options->model, "Model directory; the bundled one if left out")
      ->type_name("DIR");
  cpu->add_option("--summary", options->summary_path, "Write the rows into this summary.json")
      ->type_name("FILE");
  cpu->add_option("--commit", options->commit, "Commit to write beside the rows")
      ->capture_default_str();
  cpu->add_option("--repetitions", options->repetitions, "Runs per number; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
#if EXPERTPLEX_CUDA
  CLI::App* gemm = verb->add_subcommand("gemm", "Grouped GEMM pipelines alone, as plain launches");
  const auto gemm_options = std::make_shared<bench::GemmBenchOptions>();
  gemm->add_option("--repetitions", gemm_options->repetitions, "Launches per number")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  gemm->add_option("--only", gemm_options->only, "Only rows whose name contains this")
      ->type_name("TEXT");
  gemm->add_flag("--predict", gemm_options->predict,
                 "Print the ranked plans that the cost model expects; needs no GPU");
  gemm->callback([gemm_options, &exit_code] {
    exit_code = exit_code_of(bench::run_gemm_bench(*gemm_options));
  });
  CLI::App* apk = verb->add_subcommand("apk", "The adaptive persistent kernel, alone and shared");
  const auto apk_options = std::make_shared<bench::ApkBenchOptions>();
  apk->add_option("--only", apk_options->only, "Only sections whose name contains this")
      ->type_name("TEXT");
  apk->add_option("--shape", apk_options->shape, "Only shapes whose name contains this")
      ->type_name("TEXT");
  apk->add_option("--summary", apk_options->summary, "File of published rows to update");
  apk->add_option("--points", apk_options->points, "CSV file of plot points to write");
  apk->add_option("--commit", apk_options->commit, "Commit that the rows name");
  apk->callback(
      [apk_options, &exit_code] { exit_code = exit_code_of(bench::run_apk_bench(*apk_options)); });
  struct MpsClientOptions {
    int page = -1;
    std::string phase;
  };
  CLI::App* mps = verb->add_subcommand("mps-client", "What 'bench apk' starts under MPS");
  mps->group("");  // not in the help
  const auto mps_options = std::make_shared<MpsClientOptions>();
  mps->add_option("--page", mps_options->page)->required();
  mps->add_option("--phase", mps_options->phase)
      ->required()
      ->check(CLI::IsMember({"prefill", "decode"}));
  mps->callback([mps_options, &exit_code] {
    exit_code = bench::run_mps_client(mps_options->page, mps_options->phase == "prefill");
  });
#endif
  cpu->callback([options, &exit_code] { exit_code = exit_code_of(run_cpu(*options)); });
}

}  // namespace expertplex::cli
