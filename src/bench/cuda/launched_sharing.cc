#include "bench/cuda/launched_sharing.h"

#include <chrono>

#include "bench/cuda/green_contexts.h"
#include "bench/cuda/launched_gemms.h"

namespace expertplex::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostDecodes = 64;  // beside one prefill
constexpr int kInFlight = 8;      // decode launches ahead of the GPU when both are saturated

}  // namespace

struct LaunchedSharing::Impl {
  Policy policy;
  LaunchedGemms gemms;
  GreenContexts green;
  cudaStream_t prefill_stream = nullptr, decode_stream = nullptr;
  bool owns_streams = false;
  uint32_t prefill_ctas = 0, decode_ctas = 0;

  ~Impl() {
    if (!owns_streams) return;
    cudaStreamDestroy(prefill_stream);
    cudaStreamDestroy(decode_stream);
  }

  Result<void> launch_prefill() const { return gemms.launch_prefill(prefill_ctas, prefill_stream); }
  Result<void> launch_decode() { return gemms.launch_decode(decode_ctas, decode_stream); }
};

LaunchedSharing::LaunchedSharing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LaunchedSharing::~LaunchedSharing() = default;

Result<std::unique_ptr<LaunchedSharing>> LaunchedSharing::make(const GemmName& shape,
                                                               uint32_t decode_rows, Policy policy,
                                                               uint32_t decode_sms) {
  auto impl = std::make_unique<Impl>();
  impl->policy = policy;
  EXPERTPLEX_ASSIGN(impl->gemms, LaunchedGemms::make(shape, decode_rows, {}));
  cudaDeviceProp device;
  EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
  const auto sms = static_cast<uint32_t>(device.multiProcessorCount);
  impl->prefill_ctas = impl->decode_ctas = sms;
  std::string name = policy == Policy::kExclusive ? "exclusive" : "priority";
  if (policy == Policy::kPriorityByTile) {
    name = "priority by tile";
    impl->prefill_ctas = impl->gemms.prefill_tiles();
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

Result<void> LaunchedSharing::check() const { return impl_->gemms.check(name_); }

}  // namespace expertplex::bench
