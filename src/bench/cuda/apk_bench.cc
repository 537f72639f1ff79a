#include "bench/cuda/apk_bench.h"

#include <fmt/format.h>

#include "bench/cuda/gpu_timer.h"
#include "bench/statistics.h"
#include "cuda/host/apk_kernel.h"
#include "cuda/reference/gemm_problem.h"

namespace expertplex::bench {
namespace {

using apk::PausePolicy;
using apk::Phase;
using apk::PipelineRole;
using apk::SwitchMode;
using cuda::ApkSend;
using cuda::GemmProblem;

constexpr uint32_t kExperts = 8;
constexpr uint32_t kPrefillRows = 8192;
constexpr uint32_t kWeightSets = 4;  // decode layers, so that weights do not stay in L2
constexpr uint64_t kSendLimitNs = 100'000'000;
// One SM stays free for the kernel that plays the senders.
constexpr uint32_t kFreeSms = 1;

struct Shape {
  const char* name;
  uint32_t columns, k;
};
constexpr Shape kShapes[] = {{"glm", 4096, 6144}, {"minimax", 3072, 3072}};

struct Policy {
  const char* name;
  SwitchMode mode;
  PausePolicy pause;
};
constexpr Policy kPolicies[] = {{"never pause", SwitchMode::kTwoPipelines, PausePolicy::kNever},
                                {"window 2", SwitchMode::kTwoPipelines, PausePolicy::kWindow2},
                                {"window 1", SwitchMode::kTwoPipelines, PausePolicy::kWindow1},
                                {"pause all", SwitchMode::kTwoPipelines, PausePolicy::kAll}};
constexpr Policy kMainPolicies[] = {
    {"tile switching", SwitchMode::kTileSwitching, PausePolicy::kNever},
    {"parking", SwitchMode::kParking, PausePolicy::kNever}};

struct Slot {
  Phase phase;
  PipelineRole pipeline;
  uint8_t index;
  uint32_t rows;
  std::vector<GemmProblem> layers;
  uint32_t epoch = 0;
};

class ApkBench {
 public:
  static Result<std::unique_ptr<ApkBench>> make(const Shape& shape, int repetitions) {
    std::unique_ptr<ApkBench> bench(new ApkBench(shape, repetitions));
    cudaDeviceProp device;
    EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
    bench->ctas_ = static_cast<uint32_t>(device.multiProcessorCount) - kFreeSms;
    EXPERTPLEX_TRY(bench->add_slot(Phase::kPrefill, PipelineRole::kMain, kPrefillRows, 1));
    EXPERTPLEX_TRY(bench->add_slot(Phase::kDecode, PipelineRole::kResident, 16, kWeightSets));
    EXPERTPLEX_TRY(bench->add_slot(Phase::kDecode, PipelineRole::kMain, 128, kWeightSets));
    EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&bench->stream_, cudaStreamNonBlocking));
    EXPERTPLEX_ASSIGN(bench->sends_, cuda::MappedArray<ApkSend>::allocate(kMostSends * 2));
    return bench;
  }
  ~ApkBench() {
    kernel_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Result<void> run() {
    EXPERTPLEX_TRY(start({}));
    EXPERTPLEX_ASSIGN(const double prefill_us, prefill_alone());
    for (Slot* decode : {&slots_[1], &slots_[2]}) EXPERTPLEX_TRY(decode_alone(*decode));
    EXPERTPLEX_TRY(finish());
    for (const Policy& policy : kPolicies) {
      EXPERTPLEX_TRY(start(policy_of(policy)));
      EXPERTPLEX_TRY(in_mid_prefill(slots_[1], policy.name, prefill_us));
      EXPERTPLEX_TRY(finish());
    }
    for (const Policy& policy : kMainPolicies) {
      EXPERTPLEX_TRY(start(policy_of(policy)));
      EXPERTPLEX_TRY(in_mid_prefill(slots_[2], policy.name, prefill_us));
      EXPERTPLEX_TRY(finish());
    }
    return {};
  }

 private:
  static constexpr uint32_t kMostSends = 512;

  ApkBench(const Shape& shape, int repetitions) : shape_(shape), repetitions_(repetitions) {}

  Result<void> add_slot(Phase phase, PipelineRole pipeline, uint32_t rows, uint32_t layers) {
    Slot slot{
        phase, pipeline, static_cast<uint8_t>(phase == Phase::kPrefill ? 0 : slots_.size() - 1),
        rows,  {},       0};
    for (uint32_t l = 0; l < layers; ++l) {
      EXPERTPLEX_ASSIGN(GemmProblem problem,
                        GemmProblem::make({kExperts, shape_.columns, shape_.k},
                                          std::vector<uint32_t>(kExperts, rows), {rows},
                                          static_cast<uint32_t>(10 * slots_.size() + l + 1)));
      slot.layers.push_back(std::move(problem));
    }
    slots_.push_back(std::move(slot));
    return {};
  }

  apk::SharingPolicy policy_of(const Policy& policy) const {
    apk::SharingPolicy result;
    result.mode = policy.mode;
    result.pause = policy.pause;
    // Decode of the main pipeline gets all clusters but one.
    result.budget = {.decode_sms = ctas_,
                     .max_decode_sms = ctas_,
                     .expected_footprint_milli = 0,
                     .sms_per_cluster = 1};
    return result;
  }

  Result<void> start(const apk::SharingPolicy& policy) {
    cuda::ApkSetup setup;
    setup.ctas = ctas_;
    setup.policy = policy;
    setup.done_words_on_device = true;
    for (Slot& slot : slots_) {
      slot.epoch = 0;
      const cuda::GemmTiling tiling = cuda::gemm_tiling(slot.phase, slot.pipeline);
      cuda::ApkSlotSetup s;
      s.shape.phase = slot.phase;
      s.shape.pipeline = slot.pipeline;
      s.shape.slot = slot.index;
      s.shape.experts = kExperts;
      s.shape.intermediate = shape_.columns;
      s.shape.gate_up = {tiling.rows, tiling.columns};
      s.shape.row_group = 8;
      s.shape.max_row_blocks = kExperts * ((slot.rows + tiling.rows - 1) / tiling.rows);
      for (GemmProblem& problem : slot.layers) {
        EXPERTPLEX_TRY(problem.poison());
        EXPERTPLEX_ASSIGN(auto binding,
                          cuda::make_gemm_binding(problem.operands(), slot.phase, slot.pipeline));
        s.layers.push_back(binding);
      }
      setup.slots.push_back(std::move(s));
    }
    EXPERTPLEX_ASSIGN(kernel_, cuda::ApkKernel::start(setup));
    return {};
  }

  // Stops the kernel and checks every output that was written.
  Result<void> finish() {
    EXPERTPLEX_TRY(kernel_->stop(5 * kSecond));
    kernel_.reset();
    for (const Slot& slot : slots_) {
      for (uint32_t l = 0; l < slot.layers.size() && l < slot.epoch; ++l) {
        EXPERTPLEX_ASSIGN(const cuda::GemmErrors e,
                          cuda::compare_with_reference(slot.layers[l], 61));
        if (e.relative_l2 < 2e-3 && e.unwritten == 0 && e.overwritten == 0) continue;
        return make_error(ErrorCode::kInternal, "{} output: relative error {:.2e}, {} unwritten",
                          apk::phase_name(slot.phase), e.relative_l2, e.unwritten);
      }
    }
    return {};
  }

  void push(uint32_t sender, Slot& slot, uint64_t not_before_ns) {
    ApkSend& send = sends_[sender * kMostSends + counts_[sender]++];
    send = ApkSend{};
    send.slot = kernel_->mailbox(slot.phase, slot.index);
    send.done = kernel_->done_word(slot.phase, slot.index);
    send.layer = slot.epoch % static_cast<uint32_t>(slot.layers.size());
    send.epoch = ++slot.epoch;
    send.experts = kExperts;
    send.not_before_ns = not_before_ns;
    std::fill_n(send.rows, kExperts, slot.rows);
  }

  // Microseconds from ready word to done word of each operation of each sender.
  Result<std::vector<std::vector<double>>> send_all() {
    cuda::ApkSenders senders;
    for (uint32_t s = 0; s < cuda::kMaxApkSenders; ++s) {
      senders.sender[s] = {sends_.data() + s * kMostSends, counts_[s]};
    }
    EXPERTPLEX_CUDA_TRY(cuda::launch_apk_senders(senders, kSendLimitNs, stream_));
    EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(stream_));
    std::vector<std::vector<double>> times(cuda::kMaxApkSenders);
    for (uint32_t s = 0; s < cuda::kMaxApkSenders; ++s) {
      for (uint32_t i = 0; i < counts_[s]; ++i) {
        const ApkSend& send = sends_[s * kMostSends + i];
        if (send.done_ns == 0) {
          return make_error(ErrorCode::kDeadlineExceeded, "{}: sender {}: operation {} not done",
                            shape_.name, s, i);
        }
        times[s].push_back(static_cast<double>(send.done_ns - send.sent_ns) * 1e-3);
      }
      counts_[s] = 0;
    }
    return times;
  }

  Result<double> prefill_alone() {
    std::vector<double> times;
    for (int i = 0; i < repetitions_; ++i) {
      std::this_thread::sleep_until(std::chrono::steady_clock::now() + kBurstIdle);
      push(0, slots_[0], 0);
      EXPERTPLEX_ASSIGN(const auto t, send_all());
      times.push_back(t[0][0]);
    }
    const Spread s = spread(times);
    const double flops = 2.0 * kExperts * kPrefillRows * shape_.columns * shape_.k;
    fmt::print("{:8} prefill {}x{} alone: {:.1f} us ({:.1f} .. {:.1f}) {:.0f} TFLOP/s on {} SMs\n",
               shape_.name, kExperts, kPrefillRows, s.median, s.low, s.high,
               flops / s.median * 1e-6, ctas_);
    return s.median;
  }

  Result<void> decode_alone(Slot& slot) {
    constexpr uint32_t kOperations = 200;
    for (uint32_t i = 0; i < kOperations; ++i) push(1, slot, i * 200'000ull);
    EXPERTPLEX_ASSIGN(const auto isolated, send_all());
    for (uint32_t i = 0; i < kOperations; ++i) push(1, slot, 0);
    EXPERTPLEX_ASSIGN(const auto chained, send_all());
    const double bytes = double(kExperts) * shape_.columns * shape_.k;
    fmt::print(
        "{:8} decode {}x{} alone: isolated {:.1f} us (p99 {:.1f}), one after the other {:.1f} us "
        "({:.2f} TB/s)\n",
        shape_.name, kExperts, slot.rows, quantile(isolated[1], 0.5), quantile(isolated[1], 0.99),
        quantile(chained[1], 0.5), bytes / quantile(chained[1], 0.5) * 1e-6);
    return {};
  }

  // A decode operation every 300 us beside prefill operations, and the same prefills without.
  Result<void> in_mid_prefill(Slot& slot, const char* policy, double prefill_us) {
    std::vector<double> decode, with, without;
    double decodes = 0;
    for (int i = 0; i < repetitions_; ++i) {
      push(0, slots_[0], 0);
      EXPERTPLEX_ASSIGN(const auto alone, send_all());
      without.push_back(alone[0][0]);
      push(0, slots_[0], 0);
      const uint64_t last_us = static_cast<uint64_t>(prefill_us) - 150;
      for (uint64_t at = 200; at < last_us; at += 300) push(1, slot, at * 1000);
      EXPERTPLEX_ASSIGN(const auto shared, send_all());
      with.push_back(shared[0][0]);
      decodes = static_cast<double>(shared[1].size());
      decode.insert(decode.end(), shared[1].begin(), shared[1].end());
    }
    const double lost = (quantile(with, 0.5) - quantile(without, 0.5)) / decodes;
    fmt::print(
        "{:8} decode {}x{} in mid-prefill, {:14}: {:.1f} us (p99 {:.1f}), prefill {:.1f} us with "
        "{} "
        "decodes, {:.1f} without: {:+.1f} us lost each\n",
        shape_.name, kExperts, slot.rows, policy, quantile(decode, 0.5), quantile(decode, 0.99),
        quantile(with, 0.5), decodes, quantile(without, 0.5), lost);
    std::fflush(stdout);
    return {};
  }

  Shape shape_;
  int repetitions_;
  uint32_t ctas_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<cuda::ApkKernel> kernel_;
  cuda::MappedArray<ApkSend> sends_;
  uint32_t counts_[cuda::kMaxApkSenders] = {};
  cudaStream_t stream_ = nullptr;
};

}  // namespace

Result<void> run_apk_bench(const ApkBenchOptions& options) {
  for (const Shape& shape : kShapes) {
    EXPERTPLEX_ASSIGN(const auto bench, ApkBench::make(shape, options.repetitions));
    EXPERTPLEX_TRY(bench->run());
  }
  return {};
}

}  // namespace expertplex::bench
