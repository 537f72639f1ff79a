#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "bench/cuda/launched_gemms.h"
#include "bench/cuda/mps_page.h"
#include "bench/cuda/mps_sharing.h"

namespace expertplex::bench {

Result<void> wait_for_round(const MpsPage& page, const std::atomic<uint32_t>& word, uint32_t round,
                            const char* who) {
  const Nanoseconds until = now_ns() + kMpsWaitLimit;
  while (word.load(std::memory_order_acquire) < round) {
    if (page.failed.load(std::memory_order_relaxed) != 0) {
      return make_error(ErrorCode::kUnavailable, "{}: the other client failed", who);
    }
    if (now_ns() > until) {
      return make_error(ErrorCode::kDeadlineExceeded, "{}: round {} expected, seen {}, waited {} s",
                        who, round, word.load(), kMpsWaitLimit / kSecond);
    }
  }
  return {};
}

namespace {

constexpr int kInFlight = 8;  // decode launches ahead of the GPU when both are saturated

class MpsClient {
 public:
  MpsClient(MpsPage& page, bool prefill) : page_(page), prefill_(prefill) {}
  ~MpsClient() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Result<void> run() {
    cudaDeviceProp device;
    EXPERTPLEX_CUDA_TRY(cudaGetDeviceProperties(&device, 0));
    ctas_ = static_cast<uint32_t>(device.multiProcessorCount);  // those of its percentage
    EXPERTPLEX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    EXPERTPLEX_ASSIGN(gemms_, LaunchedGemms::make(page_.shape, page_.decode_rows,
                                                  {.prefill = prefill_, .decode = !prefill_}));
    for (uint32_t kind = 0; kind < kMpsKinds; ++kind) {
      for (int i = -1; i < page_.prefills; ++i) {  // the first one warms up
        EXPERTPLEX_TRY(prefill_ ? prefill_round(kind, i) : decode_round(kind, i));
      }
    }
    EXPERTPLEX_TRY(prefill_ ? saturate_prefill() : saturate_decode());
    return gemms_.check(prefill_ ? "mps prefill" : "mps decode");
  }

 private:
  Result<void> begin_prefill() {
    EXPERTPLEX_TRY(wait_for_round(page_, page_.decode_at, ++round_, "prefill waits for decode"));
    page_.start_ns.store(now_ns(), std::memory_order_relaxed);
    page_.prefill_at.store(round_, std::memory_order_release);
    return {};
  }
  void end_prefill() { page_.prefill_done.store(round_, std::memory_order_release); }

  Result<void> begin_decode() {
    page_.decode_at.store(++round_, std::memory_order_release);
    return wait_for_round(page_, page_.prefill_at, round_, "decode waits for prefill");
  }
  bool prefill_is_over() const {
    return page_.prefill_done.load(std::memory_order_acquire) >= round_ ||
           page_.failed.load(std::memory_order_relaxed) != 0;
  }

  Result<void> prefill_round(uint32_t kind, int i) {
    EXPERTPLEX_TRY(begin_prefill());
    EventPair pair;
    EXPERTPLEX_TRY(pair.around(stream_, [&] { return gemms_.launch_prefill(ctas_, stream_); }));
    EXPERTPLEX_TRY(pair.wait());
    end_prefill();
    EXPERTPLEX_ASSIGN(const double us, pair.microseconds());
    if (i >= 0) page_.prefill_us[kind][i] = us;
    return {};
  }

  Result<void> decode_round(uint32_t kind, int i) {
    EXPERTPLEX_TRY(begin_decode());
    const Nanoseconds start = page_.start_ns.load(std::memory_order_relaxed);
    int sent = 0;
    for (double at = page_.first_us; sent < kMpsMostDecodes; at += page_.every_us[kind]) {
      const Nanoseconds when = start + static_cast<Nanoseconds>(at * 1e3);
      while (now_ns() < when) {
      }
      if (sent > 0 && prefill_is_over()) break;
      EXPERTPLEX_TRY(decodes_[sent++].around(
          stream_, [&] { return gemms_.launch_decode(ctas_, stream_); }));
      if (page_.every_us[kind] == 0) break;
    }
    EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(stream_));
    for (int d = 0; i >= 0 && d < sent; ++d) {
      EXPERTPLEX_ASSIGN(page_.decode_us[kind][page_.decodes[kind]], decodes_[d].microseconds());
      ++page_.decodes[kind];
    }
    return {};
  }

  Result<void> saturate_prefill() {
    EXPERTPLEX_TRY(begin_prefill());
    EventPair all;
    EXPERTPLEX_TRY(all.around(stream_, [&]() -> Result<void> {
      for (int i = 0; i < page_.prefills; ++i) {
        EXPERTPLEX_TRY(gemms_.launch_prefill(ctas_, stream_));
      }
      return {};
    }));
    EXPERTPLEX_TRY(all.wait());
    end_prefill();
    EXPERTPLEX_ASSIGN(const double us, all.microseconds());
    page_.saturated_prefill_us = us / page_.prefills;
    return {};
  }

  Result<void> saturate_decode() {
    EXPERTPLEX_TRY(begin_decode());
    const Nanoseconds start = now_ns();
    int sent = 0;
    while (!prefill_is_over()) {
      EventPair& pair = decodes_[sent % kInFlight];
      if (sent >= kInFlight) EXPERTPLEX_TRY(pair.wait());
      EXPERTPLEX_TRY(
          pair.around(stream_, [&] { return gemms_.launch_decode(ctas_, stream_); }));
      ++sent;
    }
    const double us = static_cast<double>(now_ns() - start) * 1e-3;
    EXPERTPLEX_CUDA_TRY(cudaStreamSynchronize(stream_));
    page_.saturated_decode_us = us / std::max(1, sent - kInFlight);
    return {};
  }

  MpsPage& page_;
  const bool prefill_;
  uint32_t ctas_ = 0, round_ = 0;
  cudaStream_t stream_ = nullptr;
  LaunchedGemms gemms_;
  EventPair decodes_[kMpsMostDecodes];
};

}  // namespace

int run_mps_client(int descriptor, bool prefill) {
  void* memory =
      mmap(nullptr, sizeof(MpsPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    fmt::print(stderr, "error: mps-client: descriptor {} is no page of a parent's: {}\n",
               descriptor, std::strerror(errno));
    return 2;
  }
  auto& page = *static_cast<MpsPage*>(memory);
  page.shape.name = page.model;
  page.shape.gemm = page.gemm;
  const Result<void> result = MpsClient(page, prefill).run();
  if (result) return 0;
  page.failed.store(1, std::memory_order_relaxed);
  std::strncpy(page.error[prefill ? 0 : 1], result.error().message.c_str(),
               sizeof(page.error[0]) - 1);
  return 1;
}

}  // namespace expertplex::bench
