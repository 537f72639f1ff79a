// The GEMM kernel: one CTA per SM whose warps are roles. It computes tiles until its source says
// that there are no more; the source is the one thing that differs between an ordinary launch
// (device/static_source.h) and the adaptive persistent kernel.
//
//   warpgroup 0   warp 0 main producer, warp 1 resident producer, warp 2 scheduler (the source),
//                 warp 3 committer; that of CTA 0 is the source's deciding agent too
//   warpgroup 1,2 main math
//   warpgroup 3   resident math
#pragma once

#include "cuda/device/committer.h"
#include "cuda/device/main_math.h"
#include "cuda/device/main_producer.h"
#include "cuda/device/resident_math.h"
#include "cuda/device/resident_producer.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
__device__ __forceinline__ void initialise_shared(SharedLayout<kConfig>* shared) {
  const auto init = [](uint64_t* barriers, uint32_t count, uint32_t arrivals) {
    for (uint32_t i = 0; i < count; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&barriers[i]), arrivals);
    }
  };
  constexpr uint32_t kMainWarps = 8, kResidentWarps = 4;
  init(shared->main_full, kConfig.main_stages, 1);
  init(shared->main_empty, kConfig.main_stages, kMainWarps);
  init(shared->main_work_full, kMainWorkSlots, 1);
  init(shared->main_work_done, kMainWorkSlots + 1, kMainWarps);
  init(shared->main_work_empty, kMainWorkSlots, 2);
  init(shared->resident_full, kConfig.resident_stages, 1);
  init(shared->resident_empty, kConfig.resident_stages, kResidentWarps);
  init(shared->resident_work_full, kResidentWorkSlots, 1);
  init(shared->resident_work_done, kResidentWorkSlots, kResidentWarps);
  init(shared->resident_work_empty, kResidentWorkSlots, 2);
  init(shared->inbox_seen_full, 1, 32);
  shared->main_work[kParkSlot] = TileWork{};
  shared->main_work[kParkSlot].flags = kWorkParks;
  shared->control = ProducerControl{};
  shared->wanted = WantedTiles{};
  shared->begun = BegunTiles{};
  for (uint32_t& barrier : shared->left_waiting) barrier = 0;
  ptx::fence_mbarrier_init();
}

// Config::kValue is a GemmConfig (nvcc's host stub cannot spell a struct as a template argument).
template <typename Config, typename Source>
__global__ void __launch_bounds__(Config::kValue.threads(), 1)
    gemm_kernel(const __grid_constant__ typename Source::Parameters parameters) {
  constexpr GemmConfig kConfig = Config::kValue;
  using Shared = SharedLayout<kConfig>;
  static_assert(sizeof(Shared) <= kSharedLimit, "rings do not fit");
  static_assert(kConfig.registers() <= kConfig.launch_registers());
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Shared* shared = reinterpret_cast<Shared*>(shared_bytes);
  if (threadIdx.x == 0) {
    if (ptx::shared_address(shared) % (1 << 24) != kSharedBase)
      __trap();  // the CTA's rank is above
    initialise_shared(shared);
  }
  __syncthreads();

  // setmaxnreg is honoured only where each role is one branch of one if/else with a common join,
  // and where a run-time guard follows it; else ptxas falls back to 128 registers and spills, in
  // silence.
  const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const typename Source::Parking parking(parameters);
  using Trace = typename Source::Trace;
  if (warp < 4) {
    ptx::decrease_registers<kConfig.producer_registers>();
    if (warp == 0) {
      MainProducer<kConfig, Trace>(shared, Trace(parameters, ApkTraceKind::kMainLoads)).run();
    } else if (warp == 1) {
      if constexpr (kConfig.has_resident()) {
        using Inbox = typename Source::template Inbox<kConfig>;
        ResidentProducer<kConfig, Trace, Inbox>(
            shared, Trace(parameters, ApkTraceKind::kResidentLoads), Inbox(parameters, shared))
            .run();
      }
    } else if (warp == 2) {
      Source::template run<kConfig>(parameters, shared);
    } else {
      Committer<kConfig, typename Source::Commit> committer(shared,
                                                            typename Source::Commit(parameters));
      if (blockIdx.x == 0) {
        Source::run_agent(parameters, committer);
      } else {
        committer.run();
      }
    }
    __syncwarp();
  } else if (warp < 8) {
    ptx::increase_registers<kConfig.math_registers>();
    if (gridDim.x > 0) MainMath<kConfig, 0, typename Source::Parking>(shared, parking).run();
  } else if (warp < 12) {
    ptx::increase_registers<kConfig.math_registers>();
    if (gridDim.x > 0) MainMath<kConfig, 1, typename Source::Parking>(shared, parking).run();
  } else if constexpr (kConfig.has_resident()) {
    ptx::decrease_registers<kConfig.resident_registers>();
    ResidentMath<kConfig>(shared).run();
  }
  __syncthreads();
  if (threadIdx.x == 0) Source::report(parameters, shared->left_waiting);
}

}  // namespace expertplex::cuda
