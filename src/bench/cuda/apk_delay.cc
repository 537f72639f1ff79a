// Preemption delay: from a ready word, written in the middle of a prefill, to the first load of a
// decode tile, in the first CTA and in the last; and the time between two starts of tiles.
#include <algorithm>
#include <map>

#include "bench/cuda/apk_sections.h"
#include "bench/statistics.h"

namespace expertplex::bench {
namespace {

using apk::PausePolicy;
using apk::Phase;
using apk::PipelineRole;
using apk::SwitchMode;
using cuda::ApkTraceEvent;

constexpr int kPrefills = 12;
constexpr uint64_t kBetweenDecodesUs = 300;
constexpr uint32_t kTraceCapacity = 4096;
enum Slot : size_t { kPrefillSlot, kDecode16, kDecode128 };

constexpr ApkMode kModes[] = {
    {"never", SwitchMode::kTwoPipelines, PausePolicy::kNever, kDecode16},
    {"pause_all", SwitchMode::kTwoPipelines, PausePolicy::kAll, kDecode16},
    {"parking", SwitchMode::kParking, PausePolicy::kNever, kDecode128}};

// When the CTAs began their tiles of one operation.
struct Starts {
  uint64_t first = ~uint64_t{0}, last = 0;  // the CTAs' first tiles
  uint64_t last_second = 0;                 // the last CTA's second one; 0: none has a second
};

struct Delays {
  std::vector<double> first, all, second, total;  // us from the ready word
  std::vector<double> tile_intervals;             // us between starts of prefill tiles of a CTA
};

class DelayMeter {
 public:
  DelayMeter(ApkWorkload& workload, const ApkMode& mode) : workload_(workload), mode_(mode) {}

  Result<Delays> run() {
    EXPERTPLEX_TRY(workload_.start(workload_policy(mode_.mode, mode_.pause, workload_.ctas()),
                                   kTraceCapacity));
    std::vector<OperationTime> decodes;
    for (int i = 0; i < kPrefills; ++i) {
      workload_.push(0, kPrefillSlot, 0);
      for (uint64_t at = 200; at < prefill_us() - 150; at += kBetweenDecodesUs) {
        workload_.push(1, mode_.decode_slot, at * 1000);
      }
      EXPERTPLEX_ASSIGN(const auto times, workload_.send_all());
      decodes.insert(decodes.end(), times[1].begin(), times[1].end());
    }
    EXPERTPLEX_TRY(workload_.finish());
    EXPERTPLEX_TRY(read_starts());
    for (size_t i = 0; i < decodes.size(); ++i) {
      const Starts& s = starts_[static_cast<uint32_t>(i + 1)];
      const auto since = [&](uint64_t ns) {
        return static_cast<double>(static_cast<int64_t>(ns - decodes[i].sent_ns)) * 1e-3;
      };
      delays_.first.push_back(since(s.first));
      delays_.all.push_back(since(s.last));
      if (s.last_second > 0) delays_.second.push_back(since(s.last_second));
      delays_.total.push_back(decodes[i].microseconds());
    }
    return delays_;
  }

 private:
  // A lower estimate: decodes must fall into the prefill.
  uint64_t prefill_us() const {
    const GemmName& g = workload_.shape();
    return static_cast<uint64_t>(2.0 * kSharedExperts * kPrefillRows * g.columns * g.k / 1.4e9);
  }

  Result<void> read_starts() {
    for (uint32_t cta = 0; cta < workload_.ctas(); ++cta) {
      for (const PipelineRole role : {PipelineRole::kMain, PipelineRole::kResident}) {
        EXPERTPLEX_ASSIGN(const auto events, workload_.kernel().read_trace(cta, role));
        note(events);
      }
    }
    return {};
  }
  void note(const std::vector<ApkTraceEvent>& events) {
    std::map<uint32_t, uint32_t> tiles;  // of this CTA, by epoch
    uint64_t prefill = 0;
    for (const ApkTraceEvent& e : events) {
      if (e.first_k != 0) continue;  // a tile that goes on
      if (e.phase == Phase::kPrefill) {
        if (prefill != 0) {
          delays_.tile_intervals.push_back(static_cast<double>(e.time_ns - prefill) * 1e-3);
        }
        prefill = e.time_ns;
        continue;
      }
      Starts& s = starts_[e.epoch];
      const uint32_t tile = tiles[e.epoch]++;
      if (tile == 0) {
        s.first = std::min(s.first, e.time_ns);
        s.last = std::max(s.last, e.time_ns);
      } else if (tile == 1) {
        s.last_second = std::max(s.last_second, e.time_ns);
      }
    }
  }

  ApkWorkload& workload_;
  const ApkMode& mode_;
  std::map<uint32_t, Starts> starts_;
  Delays delays_;
};

void print(const char* what, const std::vector<double>& us) {
  fmt::print("    {:28} p50 {:7.2f}  p90 {:7.2f}  p99 {:7.2f}  max {:7.2f} us  ({} samples)\n",
             what, quantile(us, 0.5), quantile(us, 0.9), quantile(us, 0.99), quantile(us, 1.0),
             us.size());
}

}  // namespace

Result<void> measure_delay(const GemmName& shape, BenchRows& rows) {
  EXPERTPLEX_ASSIGN(
      const auto workload,
      ApkWorkload::make(
          shape, {{},
                  {.phase = Phase::kDecode,
                   .pipeline = PipelineRole::kResident,
                   .rows = 16,
                   .weight_sets = 4},
                  {.phase = Phase::kDecode,
                   .pipeline = PipelineRole::kMain,
                   .rows = 128,
                   .weight_sets = 4}}));
  for (const ApkMode& mode : kModes) {
    EXPERTPLEX_ASSIGN(const Delays d, DelayMeter(*workload, mode).run());
    fmt::print("{} 8x{} every {} us in a prefill, {}:\n", shape.name,
               workload->slot(mode.decode_slot).rows, kBetweenDecodesUs, mode.name);
    print("ready to first load", d.first);
    print("ready to every SM's load", d.all);
    print("ready to last second tile", d.second);
    print("ready to done", d.total);
    print("between prefill tiles", d.tile_intervals);
    if (std::string(shape.name) != kGlmGateUp.name) continue;
    if (mode.mode == SwitchMode::kParking) {
      rows.add("apk.preemption_delay_full_parking_p99_us", quantile(d.all, 0.99), "us", "<= 8");
    } else if (mode.pause == PausePolicy::kNever) {
      rows.add("apk.preemption_delay_first_p99_us", quantile(d.first, 0.99), "us", "<= 4");
      rows.add("apk.preemption_delay_full_p99_us", quantile(d.all, 0.99), "us", "<= 5");
    }
  }
  return {};
}

}  // namespace expertplex::bench
