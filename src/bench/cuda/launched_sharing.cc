#include "bench/cuda/launched_sharing.h"

#include <chrono>

#include "bench/cuda/gpu_timer.h"
#include "bench/cuda/green_contexts.h"

namespace expertplex::bench {
namespace {

using apk::Phase;
using apk::PipelineRole;
using cuda::GemmOperation;
using cuda::GemmProblem;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kWeightSets = 4;
constexpr int kMostDecodes = 64;  // beside one prefill
constexpr int kInFlight = 8;      // decode launches ahead of the GPU when both are saturated

class EventPair {
 public:
  EventPair() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~EventPair() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  Result<void> around(cudaStream_t stream, const std::function<Result<void>()>& launch) {
    EXPERTPLEX_CUDA_TRY(cudaEventRecord(begin_, stream));
    EXPERTPLEX_TRY(launch());
    return cuda::cuda_result(cudaEventRecord(end_, stream), "cudaEventRecord");
  }
  bool done() const { return cudaEventQuery(end_) == cudaSuccess; }
  Result<void> wait() const {
    return cuda::cuda_result(cudaEventSynchronize(end_), "cudaEventSynchronize");
  }
  Result<double> microseconds() const {
    float milliseconds = 0;
    EXPERTPLEX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

struct LaunchedSharing::Impl {
  Policy policy;
  std::vector<GemmProblem> problems;  // prefill, then decode's weight sets
  std::vector<GemmOperation> operations;
  GreenContexts green;
  cudaStream_t prefill_stream = nullptr, decode_stream = nullptr;
  bool owns_streams = false;
  uint32_t prefill_ctas = 0, decode_ctas = 0;
  int next_decode = 0;

  ~Impl() {
    if (!owns_streams) return;
    cudaStreamDestroy(prefill_stream);
    cudaStreamDestroy(decode_stream);
  }

  Result<void> add(const GemmName& shape, Phase phase, PipelineRole pipeline, uint32_t rows,
                   uint32_t seed) {
    const cuda::RowPlacement placement{rows};
    EXPERTPLEX_ASSIGN(
        GemmProblem problem,
        GemmProblem::make({kSharedExperts, shape.columns, shape.k},
                          std::vector<uint32_t>(kSharedExperts, rows), placement, seed));
    EXPERTPLEX_TRY(problem.poison());
    EXPERTPLEX_ASSIGN(GemmOperation operation,
                      GemmOperation::make(problem.operands(), phase, pipeline,
                                          problem.rows_per_expert, placement));
    problems.push_back(std::move(problem));
    operations.push_back(std::move(operation));
    return {};
  }

  Result<void> launch_prefill() const {
    // The configuration without the resident pipeline: it is the faster one.
    return cuda::launch_grouped_gemm(cuda::compiled_gemm_configs()[1], &operations[0], nullptr,
                                     prefill_ctas, prefill_stream);
  }
  Result<void> launch_decode() {
    const GemmOperation& op = operations[1 + next_decode++ % kWeightSets];
    const bool resident = op.pipeline() == PipelineRole::kResident;
    return cuda::launch_grouped_gemm(cuda::compiled_gemm_configs()[0], resident ? nullptr : &op,
                                     resident ? &op : nullptr, decode_ctas, decode_stream);
  }
};

LaunchedSharing::LaunchedSharing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LaunchedSharing::~LaunchedSharing() = default;

Result<std::unique_ptr<LaunchedSharing>> LaunchedSharing::make(const GemmName& shape,
                                                               uint32_t decode_rows, Policy policy,
                                                               uint32_t decode_sms) {
  auto impl = std::make_unique<Impl>();
  impl->policy = policy;
  const PipelineRole pipeline = decode_rows > 16 ? PipelineRole::kMain : PipelineRole::kResident;
  EXPERTPLEX_TRY(impl->add(shape, Phase::kPrefill, PipelineRole::kMain, kPrefillRows, 1));
  for (uint32_t s = 0; s < kWeightSets; ++s) {
    EXPERTPLEX_TRY(impl->add(shape, Phase::kDecode, pipeline, decode_rows, s + 2));
  }
  cudaDeviceProp device;
  EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
  const auto sms = static_cast<uint32_t>(device.multiProcessorCount);
  impl->prefill_ctas = impl->decode_ctas = sms;
  std::string name = policy == Policy::kExclusive ? "exclusive" : "priority";
  if (policy == Policy::kPriorityByTile) {
    name = "priority by tile";
    impl->prefill_ctas = impl->operations[0].tiles();
  }
  if (policy == Policy::kGreen) {
    EXPERTPLEX_ASSIGN(impl->green, GreenContexts::make(decode_sms));
    impl->decode_stream = impl->green.stream(0);
    impl->prefill_stream = impl->green.stream(1);
    impl->decode_ctas = impl->green.sms(0);
    impl->prefill_ctas = impl->green.sms(1);
    name = fmt::format("green {}", impl->decode_ctas);
  } else {
    int lowest = 0, highest = 0;
    EXPERTPLEX_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    EXPERTPLEX_CUDA_TRY(
        cudaStreamCreateWithPriority(&impl->prefill_stream, cudaStreamNonBlocking, lowest));
    EXPERTPLEX_CUDA_TRY(
        cudaStreamCreateWithPriority(&impl->decode_stream, cudaStreamNonBlocking, highest));
    impl->owns_streams = true;
  }
  std::unique_ptr<LaunchedSharing> sharing(new LaunchedSharing(std::move(impl)));
  sharing->name_ = name;
  return sharing;
}

Result<SharedTimes> LaunchedSharing::run(int prefills, double first_us, double every_us) {
  SharedTimes times;
  EventPair prefill;
  std::vector<EventPair> decodes(kMostDecodes);
  const auto launch_decode = [&] { return impl_->launch_decode(); };
  for (int i = -1; i < prefills; ++i) {  // the first one warms up
    const auto start = Clock::now();
    EXPERTPLEX_TRY(prefill.around(impl_->prefill_stream, [&] { return impl_->launch_prefill(); }));
    if (impl_->policy == Policy::kExclusive) EXPERTPLEX_TRY(prefill.wait());
    int sent = 0;
    for (double at = first_us; sent < kMostDecodes; at += every_us) {
      const auto when = start + std::chrono::duration<double, std::micro>(at);
      if (impl_->policy != Policy::kExclusive) {
        while (Clock::now() < when) {
        }
        if (prefill.done()) break;
      }
      EXPERTPLEX_TRY(decodes[sent++].around(impl_->decode_stream, launch_decode));
      if (every_us == 0 || impl_->policy == Policy::kExclusive) break;
    }
    EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
    if (i < 0) continue;
    EXPERTPLEX_ASSIGN(const double us, prefill.microseconds());
    times.prefill_us.push_back(us);
    for (int d = 0; d < sent; ++d) {
      EXPERTPLEX_ASSIGN(const double decode, decodes[d].microseconds());
      times.decode_us.push_back(decode);
    }
  }
  return times;
}

Result<SharedRates> LaunchedSharing::saturate(int prefills) {
  EventPair all, decodes[kInFlight], decode_run;
  const bool exclusive = impl_->policy == Policy::kExclusive;
  EXPERTPLEX_TRY(impl_->launch_prefill());
  EXPERTPLEX_TRY(impl_->launch_decode());
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  EXPERTPLEX_TRY(all.around(impl_->prefill_stream, [&]() -> Result<void> {
    for (int i = 0; i < prefills; ++i) EXPERTPLEX_TRY(impl_->launch_prefill());
    return {};
  }));
  if (exclusive) EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  const auto start = Clock::now();
  int sent = 0;
  const int alone = 500;
  while (exclusive ? sent < alone : !all.done()) {
    EventPair& pair = decodes[sent % kInFlight];
    if (sent >= kInFlight) EXPERTPLEX_TRY(pair.wait());
    EXPERTPLEX_TRY(pair.around(impl_->decode_stream, [&] { return impl_->launch_decode(); }));
    ++sent;
  }
  const double decode_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  EXPERTPLEX_CUDA_TRY(cudaDeviceSynchronize());
  EXPERTPLEX_ASSIGN(const double prefill_us, all.microseconds());
  // Those in flight at the end are not counted, but for an exclusive run's.
  const int done = exclusive ? sent : std::max(1, sent - kInFlight);
  return SharedRates{prefill_us / prefills, decode_us / done};
}

Result<void> LaunchedSharing::check() const {
  for (const GemmProblem& problem : impl_->problems) {
    EXPERTPLEX_ASSIGN(const cuda::GemmErrors e, cuda::compare_with_reference(problem, 61));
    if (e.relative_l2 < 2e-3 && e.unwritten == 0 && e.overwritten == 0) continue;
    return make_error(ErrorCode::kInternal, "{}: relative error {:.2e} (limit 2e-3), {} unwritten",
                      name_, e.relative_l2, e.unwritten);
  }
  return {};
}

}  // namespace expertplex::bench
