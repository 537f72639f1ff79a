// One prefill operation and decode operations that arrive while it runs: what decode takes and what
// the prefill loses, for every contestant (the paper's figures 11 and 12); and both phases always
// busy. Times of the persistent kernel are from ready word to done word, on 131 SMs; those of
// launched contestants from event to event, on 132.
#include <algorithm>
#include <functional>

#include "bench/cuda/apk_sections.h"
#include "bench/cuda/launched_sharing.h"
#include "bench/cuda/mps_sharing.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

using apk::PausePolicy;
using apk::Phase;
using apk::PipelineRole;
using apk::SwitchMode;

constexpr int kPairs = 50;         // of a prefill with decode beside it and one without
constexpr int kLaunchedRuns = 50;  // prefills of a launched contestant
constexpr double kFirstUs = 10;
constexpr uint32_t kWeightSets = 4;
constexpr double kOftenUs = 300;  // between decode operations that keep coming
constexpr uint32_t kGreenSms[] = {16, 32, 48, 64, 96};
constexpr uint32_t kMpsPercents[] = {25, 50};
enum Slot : size_t { kPrefillSlot, kResident16, kMain128, kMain16, kSlots };

constexpr ApkMode kModes16[] = {
    {"never", SwitchMode::kTwoPipelines, PausePolicy::kNever, kResident16},
    {"window_2", SwitchMode::kTwoPipelines, PausePolicy::kWindow2, kResident16},
    {"window_1", SwitchMode::kTwoPipelines, PausePolicy::kWindow1, kResident16},
    {"pause_all", SwitchMode::kTwoPipelines, PausePolicy::kAll, kResident16},
    {"tile_switching", SwitchMode::kTileSwitching, PausePolicy::kNever, kMain16},
    {"parking", SwitchMode::kParking, PausePolicy::kNever, kMain16}};
constexpr ApkMode kModes128[] = {
    {"tile_switching", SwitchMode::kTileSwitching, PausePolicy::kNever, kMain128},
    {"parking", SwitchMode::kParking, PausePolicy::kNever, kMain128}};

WorkloadSlot decode_slot(PipelineRole pipeline, uint32_t rows) {
  return {.phase = Phase::kDecode, .pipeline = pipeline, .rows = rows, .weight_sets = kWeightSets};
}

std::span<const ApkMode> modes_of(uint32_t rows) {
  if (rows == 16) return kModes16;
  return kModes128;
}

// What a contestant does to both phases.
struct Outcome {
  std::vector<double> decode_us;
  double prefill_us = 0;  // with decode beside it
  double lost_us = 0;     // by each decode operation
};

// The contestants that differ in one number share a series.
std::string series_of(const std::string& name) {
  if (name.starts_with("green")) return "green contexts";
  return name.starts_with("mps") ? "mps" : name;
}

void report(BenchRows& rows, const std::string& plot, const std::string& name,
            const Outcome& outcome, double decode_alone, double prefill_alone) {
  const double decode = quantile(outcome.decode_us, 0.5);
  fmt::print(
      "{:34} {:22} decode {:8.1f} us (p10 {:.1f}, p90 {:.1f}; x{:.2f})   prefill {:8.1f} us "
      "(x{:.3f})   lost {:+8.1f} us each\n",
      plot, name, decode, quantile(outcome.decode_us, 0.1), quantile(outcome.decode_us, 0.9),
      decode / decode_alone, outcome.prefill_us, outcome.prefill_us / prefill_alone,
      outcome.lost_us);
  std::fflush(stdout);
  rows.point(plot, series_of(name), name, decode, outcome.lost_us);
}

// The persistent kernel under one mode. every_us of 0: one decode operation a prefill.
Result<Outcome> run_mode(ApkWorkload& workload, const ApkMode& mode, double every_us,
                         double prefill_us) {
  EXPERTPLEX_TRY(workload.start(workload_policy(mode.mode, mode.pause, workload.ctas())));
  Outcome outcome;
  std::vector<double> with, lost;
  for (int i = 0; i < kPairs; ++i) {
    workload.push(0, kPrefillSlot, 0);
    EXPERTPLEX_ASSIGN(const auto alone, workload.send_all());
    workload.push(0, kPrefillSlot, 0);
    uint32_t decodes = 0;
    for (double at = kFirstUs; at < prefill_us - 100; at += every_us) {
      workload.push(1, mode.decode_slot, static_cast<uint64_t>(at * 1e3));
      ++decodes;
      if (every_us == 0) break;
    }
    EXPERTPLEX_ASSIGN(const auto shared, workload.send_all());
    with.push_back(shared[0][0].microseconds());
    lost.push_back((with.back() - alone[0][0].microseconds()) / decodes);
    for (const OperationTime& t : shared[1]) outcome.decode_us.push_back(t.microseconds());
  }
  EXPERTPLEX_TRY(workload.finish());
  outcome.prefill_us = quantile(with, 0.5);
  outcome.lost_us = quantile(lost, 0.5);
  return outcome;
}

// Alone in the persistent kernel: [prefill, decode], medians.
Result<std::pair<double, double>> run_alone(ApkWorkload& workload, size_t decode_slot) {
  EXPERTPLEX_TRY(workload.start({}));
  for (int i = 0; i < 10; ++i) workload.push(0, kPrefillSlot, 0);
  EXPERTPLEX_ASSIGN(const auto prefill, workload.send_all());
  for (int i = 0; i < kPairs; ++i) workload.push(0, decode_slot, (i + 1) * 300'000ull);
  EXPERTPLEX_ASSIGN(const auto decode, workload.send_all());
  EXPERTPLEX_TRY(workload.finish());
  std::vector<double> p, d;
  for (const OperationTime& t : prefill[0]) p.push_back(t.microseconds());
  for (const OperationTime& t : decode[0]) d.push_back(t.microseconds());
  return std::pair{quantile(p, 0.5), quantile(d, 0.5)};
}

void add_published(BenchRows& rows, const GemmName& shape, uint32_t decode_rows,
                   const std::string& mode, const Outcome& outcome) {
  if (std::string(shape.name) != kGlmGateUp.name) return;
  const std::string name = fmt::format("apk.sharing.glm_{}rows", decode_rows);
  const double decode = quantile(outcome.decode_us, 0.5);
  if (decode_rows == 16 && (mode == "never" || mode == "pause_all")) {
    const bool all = mode == "pause_all";
    rows.add(name + ".decode_us_" + mode, decode, "us", all ? "<= 56" : "<= 70");
    rows.add(name + ".prefill_lost_us_" + mode, outcome.lost_us, "us", all ? "<= 50" : "<= 16");
  }
  if (decode_rows == 128 && mode == "parking") {
    rows.add(name + ".decode_us", decode, "us", "<= 66");
    rows.add(name + ".prefill_lost_us", outcome.lost_us, "us", "<= 62");
  }
}

using Policy = LaunchedSharing::Policy;
struct Launched {
  Policy policy;
  uint32_t sms = 0;
};

std::vector<Launched> launched_contestants() {
  std::vector<Launched> all = {{Policy::kPriority}, {Policy::kPriorityByTile}};
  for (const uint32_t sms : kGreenSms) all.push_back({Policy::kGreen, sms});
  return all;
}

// Of launched contestants.
Outcome launched_outcome(const SharedTimes& times, double prefill_alone) {
  Outcome outcome{times.decode_us, quantile(times.prefill_us, 0.5), 0};
  const double each =
      static_cast<double>(times.decode_us.size()) / static_cast<double>(times.prefill_us.size());
  outcome.lost_us = (outcome.prefill_us - prefill_alone) / each;
  return outcome;
}

Result<void> share_launched(const GemmName& shape, uint32_t decode_rows, double every_us,
                            const std::string& plot, double decode_alone, double prefill_alone,
                            BenchRows& rows) {
  for (const Launched& l : launched_contestants()) {
    EXPERTPLEX_ASSIGN(const auto sharing,
                      LaunchedSharing::make(shape, decode_rows, l.policy, l.sms));
    EXPERTPLEX_ASSIGN(const SharedTimes times, sharing->run(kLaunchedRuns, kFirstUs, every_us));
    EXPERTPLEX_TRY(sharing->check());
    report(rows, plot, sharing->name(), launched_outcome(times, prefill_alone), decode_alone,
           prefill_alone);
  }
  return {};
}

// Calls `tell` with the times under each percentage. Where MPS does not run, says so instead.
void for_each_mps(const GemmName& shape, uint32_t decode_rows, int prefills,
                  const std::function<void(const std::string&, const MpsTimes&)>& tell) {
  const auto daemon = MpsDaemon::start();
  if (!daemon) {
    fmt::print("mps: left out, it does not run here: {}\n", daemon.error().message);
    return;
  }
  for (const uint32_t percent : kMpsPercents) {
    const auto times =
        daemon.value()->run({shape, decode_rows, percent, prefills, kFirstUs, kOftenUs});
    if (!times) {
      fmt::print("mps {} %: left out: {}\n", percent, times.error().message);
      continue;
    }
    tell(fmt::format("mps {} %", percent), times.value());
  }
}

Result<void> share(ApkWorkload& workload, uint32_t decode_rows, BenchRows& rows) {
  const GemmName& shape = workload.shape();
  const size_t slot = decode_rows == 16 ? kResident16 : kMain128;
  EXPERTPLEX_ASSIGN(const auto apk_alone, run_alone(workload, slot));
  EXPERTPLEX_ASSIGN(const auto exclusive,
                    LaunchedSharing::make(shape, decode_rows, Policy::kExclusive));
  EXPERTPLEX_ASSIGN(const SharedTimes launched, exclusive->run(kLaunchedRuns, 0, 0));
  EXPERTPLEX_TRY(exclusive->check());
  const double launched_prefill = quantile(launched.prefill_us, 0.5);
  const double launched_decode = quantile(launched.decode_us, 0.5);
  fmt::print(
      "{} 8x{}: exclusive: launched prefill {:.1f} us, decode {:.1f} us; persistent kernel "
      "{:.1f} and {:.1f} us\n",
      shape.name, decode_rows, launched_prefill, launched_decode, apk_alone.first,
      apk_alone.second);
  const double decode_alone = std::min(launched_decode, apk_alone.second);
  const double prefill_alone = std::min(launched_prefill, apk_alone.first);
  const auto plot_of = [&](double every_us) {
    return fmt::format("sharing_{}_{}rows_{}", shape.name, decode_rows,
                       every_us == 0 ? "one" : "every300us");
  };
  for (const double every_us : {0.0, kOftenUs}) {
    const std::string plot = plot_of(every_us);
    for (const ApkMode& mode : modes_of(decode_rows)) {
      EXPERTPLEX_ASSIGN(const Outcome outcome, run_mode(workload, mode, every_us, apk_alone.first));
      report(rows, plot, std::string("apk ") + mode.name, outcome, decode_alone, prefill_alone);
      if (every_us == 0) add_published(rows, shape, decode_rows, mode.name, outcome);
    }
    EXPERTPLEX_TRY(
        share_launched(shape, decode_rows, every_us, plot, decode_alone, launched_prefill, rows));
  }
  for_each_mps(shape, decode_rows, kLaunchedRuns, [&](const std::string& name, const MpsTimes& t) {
    report(rows, plot_of(0), name, launched_outcome(t.one, launched_prefill), decode_alone,
           prefill_alone);
    report(rows, plot_of(kOftenUs), name, launched_outcome(t.often, launched_prefill), decode_alone,
           prefill_alone);
  });
  return {};
}

// --- Both phases always busy: two slots of each, so that one's next operation is always ready.

constexpr int kSaturatedPrefills = 8;   // of each prefill slot
constexpr int kSaturatedDecodes = 700;  // of each decode slot

Result<SharedRates> saturate_apk(const GemmName& shape, const ApkMode& mode, bool prefill,
                                 bool decode) {
  const WorkloadSlot d =
      decode_slot(mode.decode_slot == kResident16 ? PipelineRole::kResident : PipelineRole::kMain,
                  mode.decode_slot == kMain128 ? 128 : 16);
  EXPERTPLEX_ASSIGN(const auto workload, ApkWorkload::make(shape, {{}, {}, d, d}));
  EXPERTPLEX_TRY(workload->start(workload_policy(mode.mode, mode.pause, workload->ctas())));
  for (uint32_t s = 0; s < 2; ++s) {
    for (int i = 0; prefill && i < kSaturatedPrefills; ++i) workload->push(s, s, 0);
    for (int i = 0; decode && i < kSaturatedDecodes; ++i) workload->push(2 + s, 2 + s, 0);
  }
  EXPERTPLEX_ASSIGN(const auto times, workload->send_all());
  EXPERTPLEX_TRY(workload->finish());
  // Over the time in which both are busy.
  uint64_t begin = ~uint64_t{0}, end[2] = {0, 0};
  for (size_t s = 0; s < 4; ++s) {
    if (times[s].empty()) continue;
    begin = std::min(begin, times[s].front().sent_ns);
    end[s / 2] = std::max(end[s / 2], times[s].back().done_ns);
  }
  uint64_t until = std::max(end[0], end[1]);
  for (const uint64_t e : end) {
    if (e > 0) until = std::min(until, e);
  }
  double done[2] = {0, 0};
  for (size_t s = 0; s < 4; ++s) {
    for (const OperationTime& t : times[s]) done[s / 2] += t.done_ns <= until ? 1 : 0;
  }
  const double us = static_cast<double>(until - begin) * 1e-3;
  return SharedRates{prefill ? us / std::max(1.0, done[0]) : 0,
                     decode ? us / std::max(1.0, done[1]) : 0};
}

Result<void> saturate(const GemmName& shape, uint32_t decode_rows, BenchRows& rows) {
  const ApkMode& first = modes_of(decode_rows)[0];
  EXPERTPLEX_ASSIGN(const SharedRates p, saturate_apk(shape, first, true, false));
  EXPERTPLEX_ASSIGN(const SharedRates d, saturate_apk(shape, first, false, true));
  EXPERTPLEX_ASSIGN(const auto exclusive,
                    LaunchedSharing::make(shape, decode_rows, Policy::kExclusive));
  EXPERTPLEX_ASSIGN(const SharedRates launched, exclusive->saturate(2 * kSaturatedPrefills));
  const double prefill_alone = std::min(p.prefill_us, launched.prefill_us);
  const double decode_alone = std::min(d.decode_us, launched.decode_us);
  fmt::print(
      "{} 8x{} saturated alone: launched {:.1f} and {:.1f} us an operation, persistent "
      "kernel {:.1f} and {:.1f} us\n",
      shape.name, decode_rows, launched.prefill_us, launched.decode_us, p.prefill_us, d.decode_us);
  const std::string plot = fmt::format("saturation_{}_{}rows", shape.name, decode_rows);
  double best = 0, best_green = 0;
  const auto tell = [&](const std::string& name, const SharedRates& r) {
    const double prefill = prefill_alone / r.prefill_us, decode = decode_alone / r.decode_us;
    fmt::print(
        "{:34} {:22} prefill {:.3f} + decode {:.3f} = {:.3f}   ({:.1f} and {:.1f} us an "
        "operation)\n",
        plot, name, prefill, decode, prefill + decode, r.prefill_us, r.decode_us);
    std::fflush(stdout);
    const bool green = name.starts_with("green");
    rows.point(plot, series_of(name), name, prefill, decode);
    if (green) best_green = std::max(best_green, prefill + decode);
    if (name.starts_with("apk")) best = std::max(best, prefill + decode);
  };
  for (const ApkMode& mode : modes_of(decode_rows)) {
    EXPERTPLEX_ASSIGN(const SharedRates r, saturate_apk(shape, mode, true, true));
    tell(std::string("apk ") + mode.name, r);
  }
  for (const Launched& l : launched_contestants()) {
    EXPERTPLEX_ASSIGN(const auto sharing,
                      LaunchedSharing::make(shape, decode_rows, l.policy, l.sms));
    EXPERTPLEX_ASSIGN(const SharedRates r, sharing->saturate(2 * kSaturatedPrefills));
    EXPERTPLEX_TRY(sharing->check());
    tell(sharing->name(), r);
  }
  for_each_mps(shape, decode_rows, kSaturatedPrefills,
               [&](const std::string& name, const MpsTimes& t) { tell(name, t.saturated); });
  if (std::string(shape.name) != kGlmGateUp.name) return {};
  rows.add(fmt::format("apk.saturation_sum_8x{}", decode_rows), best, "",
           decode_rows == 16
               ? fmt::format(">= 1.35 and above {:.2f}, the best green split", best_green)
               : fmt::format(">= {:.2f}, 0.98 of the best green split", 0.98 * best_green));
  return {};
}

}  // namespace

Result<void> measure_sharing(const GemmName& shape, BenchRows& rows) {
  EXPERTPLEX_ASSIGN(const auto workload,
                    ApkWorkload::make(shape, {{},
                                              decode_slot(PipelineRole::kResident, 16),
                                              decode_slot(PipelineRole::kMain, 128),
                                              decode_slot(PipelineRole::kMain, 16)}));
  for (const uint32_t decode_rows : {16u, 128u}) {
    EXPERTPLEX_TRY(share(*workload, decode_rows, rows));
  }
  return {};
}

Result<void> measure_saturation(const GemmName& shape, BenchRows& rows) {
  for (const uint32_t decode_rows : {16u, 128u}) {
    EXPERTPLEX_TRY(saturate(shape, decode_rows, rows));
  }
  return {};
}

}  // namespace expertplex::bench
