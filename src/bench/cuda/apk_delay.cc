// Preemption delay: from a ready word, written in the middle of a prefill (or to an idle kernel),
// to the first load of a decode tile, in the first CTA and in the last; how long tiles take, and
// how often a CTA begins one.
#include <algorithm>
#include <map>

#include "bench/cuda/apk_sections.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

using apk::PausePolicy;
using apk::Phase;
using apk::SwitchMode;
using cuda::ApkTraceEvent;
using cuda::ApkTraceKind;

constexpr int kPrefills = 12;
constexpr uint64_t kBetweenDecodesUs = 300;
constexpr uint32_t kTraceCapacity = 4096;
enum Slot : size_t { kPrefillSlot, kDecode16, kDecode128 };

struct Mode {
  ApkMode sharing;
  bool prefill;  // beside it
};
constexpr Mode kModes[] = {
    {{"idle", SwitchMode::kTwoPipelines, PausePolicy::kNever, kDecode16}, false},
    {{"never", SwitchMode::kTwoPipelines, PausePolicy::kNever, kDecode16}, true},
    {{"pause_all", SwitchMode::kTwoPipelines, PausePolicy::kAll, kDecode16}, true},
    {{"idle", SwitchMode::kParking, PausePolicy::kNever, kDecode128}, false},
    {{"parking", SwitchMode::kParking, PausePolicy::kNever, kDecode128}, true}};

// When the CTAs began and ended their tiles of one operation.
struct Times {
  uint64_t first = ~uint64_t{0}, last = 0;  // began their first tiles
  uint64_t written = 0;                     // the last tile's output was written
};

// Microseconds.
struct Delays {
  std::vector<double> first, all, written, done;  // from the ready word
  std::vector<double> first_tiles, later_tiles;   // from a tile's first load to its output
  std::vector<double> intervals;                  // between starts of prefill tiles of a CTA
};

class DelayMeter {
 public:
  DelayMeter(ApkWorkload& workload, const Mode& mode) : workload_(workload), mode_(mode) {}

  Result<Delays> run() {
    const ApkMode& sharing = mode_.sharing;
    EXPERTPLEX_TRY(workload_.start(workload_policy(sharing.mode, sharing.pause, workload_.ctas()),
                                   kTraceCapacity));
    std::vector<OperationTime> decodes;
    for (int i = 0; i < kPrefills; ++i) {
      if (mode_.prefill) workload_.push(0, kPrefillSlot, 0);
      for (uint64_t at = 200; at < prefill_us() - 150; at += kBetweenDecodesUs) {
        workload_.push(1, sharing.decode_slot, at * 1000);
      }
      EXPERTPLEX_ASSIGN(const auto times, workload_.send_all());
      decodes.insert(decodes.end(), times[1].begin(), times[1].end());
    }
    EXPERTPLEX_TRY(workload_.finish());
    EXPERTPLEX_TRY(read_trace());
    for (size_t i = 0; i < decodes.size(); ++i) {
      const Times& t = times_[static_cast<uint32_t>(i + 1)];
      const auto since = [&](uint64_t ns) {
        return static_cast<double>(static_cast<int64_t>(ns - decodes[i].sent_ns)) * 1e-3;
      };
      delays_.first.push_back(since(t.first));
      delays_.all.push_back(since(t.last));
      delays_.written.push_back(since(t.written));
      delays_.done.push_back(decodes[i].microseconds());
    }
    return delays_;
  }

 private:
  // A lower estimate: decodes must fall into the prefill.
  uint64_t prefill_us() const {
    const GemmName& g = workload_.shape();
    return static_cast<uint64_t>(2.0 * kSharedExperts * kPrefillRows * g.columns * g.k / 1.4e9);
  }

  Result<void> read_trace() {
    for (uint32_t cta = 0; cta < workload_.ctas(); ++cta) {
      std::map<uint32_t, std::vector<uint64_t>> begun;  // decode tiles of this CTA, by epoch
      for (const ApkTraceKind kind : {ApkTraceKind::kMainLoads, ApkTraceKind::kResidentLoads}) {
        EXPERTPLEX_ASSIGN(const auto events, workload_.kernel().read_trace(cta, kind));
        note_loads(events, begun);
      }
      EXPERTPLEX_ASSIGN(const auto commits,
                        workload_.kernel().read_trace(cta, ApkTraceKind::kCommits));
      note_commits(commits, begun);
    }
    return {};
  }

  void note_loads(const std::vector<ApkTraceEvent>& events,
                  std::map<uint32_t, std::vector<uint64_t>>& begun) {
    uint64_t prefill = 0;
    for (const ApkTraceEvent& e : events) {
      if (e.first_k != 0) continue;  // a tile that goes on
      if (e.phase == Phase::kPrefill) {
        if (prefill != 0) {
          delays_.intervals.push_back(static_cast<double>(e.time_ns - prefill) * 1e-3);
        }
        prefill = e.time_ns;
        continue;
      }
      std::vector<uint64_t>& tiles = begun[e.epoch];
      tiles.push_back(e.time_ns);
      if (tiles.size() > 1) continue;
      Times& t = times_[e.epoch];
      t.first = std::min(t.first, e.time_ns);
      t.last = std::max(t.last, e.time_ns);
    }
  }

  void note_commits(const std::vector<ApkTraceEvent>& events,
                    const std::map<uint32_t, std::vector<uint64_t>>& begun) {
    std::map<uint32_t, size_t> ended;
    for (const ApkTraceEvent& e : events) {
      if (e.phase == Phase::kPrefill) continue;
      const size_t tile = ended[e.epoch]++;
      Times& t = times_[e.epoch];
      t.written = std::max(t.written, e.time_ns);
      const auto found = begun.find(e.epoch);
      if (found == begun.end() || tile >= found->second.size()) continue;
      // Of one tile after the other a pipeline writes this one when it has written the last.
      const double us = static_cast<double>(e.time_ns - found->second[tile]) * 1e-3;
      (tile == 0 ? delays_.first_tiles : delays_.later_tiles).push_back(us);
    }
  }

  ApkWorkload& workload_;
  const Mode& mode_;
  std::map<uint32_t, Times> times_;
  Delays delays_;
};

void print(const char* what, const std::vector<double>& us) {
  if (us.empty()) return;
  fmt::print("    {:28} p50 {:7.2f}  p90 {:7.2f}  p99 {:7.2f}  max {:7.2f} us  ({} samples)\n",
             what, quantile(us, 0.5), quantile(us, 0.9), quantile(us, 0.99), quantile(us, 1.0),
             us.size());
}

}  // namespace

Result<void> measure_delay(const GemmName& shape, BenchRows& rows) {
  EXPERTPLEX_ASSIGN(const auto workload,
                    ApkWorkload::make(shape, {{},
                                              {.phase = Phase::kDecode,
                                               .pipeline = apk::PipelineRole::kResident,
                                               .rows = 16,
                                               .weight_sets = 4},
                                              {.phase = Phase::kDecode,
                                               .pipeline = apk::PipelineRole::kMain,
                                               .rows = 128,
                                               .weight_sets = 4}}));
  for (const Mode& mode : kModes) {
    const ApkMode& sharing = mode.sharing;
    EXPERTPLEX_ASSIGN(const Delays d, DelayMeter(*workload, mode).run());
    fmt::print("{} 8x{} every {} us, {}{}:\n", shape.name, workload->slot(sharing.decode_slot).rows,
               kBetweenDecodesUs, mode.prefill ? "in a prefill, " : "", sharing.name);
    print("ready to first load", d.first);
    print("ready to every SM's load", d.all);
    print("a CTA's first tile", d.first_tiles);
    print("its second tile", d.later_tiles);
    print("ready to last tile written", d.written);
    print("ready to done", d.done);
    print("between prefill tiles", d.intervals);
    std::fflush(stdout);
    if (!mode.prefill || std::string(shape.name) != kGlmGateUp.name) continue;
    if (sharing.mode == SwitchMode::kParking) {
      rows.add("apk.preemption_delay_full_parking_p99_us", quantile(d.all, 0.99), "us", "<= 8");
    } else if (sharing.pause == PausePolicy::kNever) {
      rows.add("apk.preemption_delay_first_p99_us", quantile(d.first, 0.99), "us", "<= 4");
      rows.add("apk.preemption_delay_full_p99_us", quantile(d.all, 0.99), "us", "<= 5");
    }
  }
  return {};
}

}  // namespace expertplex::bench
