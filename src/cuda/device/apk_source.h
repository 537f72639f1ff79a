// Tile source of the adaptive persistent kernel: in every CTA a scheduler warp that takes tiles
// from the scheduling core (src/apk), and in the first one the deciding agent.
#pragma once

#include "cuda/device/apk_agent.h"
#include "cuda/device/apk_inbox.h"
#include "cuda/device/apk_scheduler_warp.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/main_math.h"
#include "cuda/ptx/fences.h"

namespace expertplex::cuda {

class ApkSource {
 public:
  using Parameters = ApkParameters;

  // Events of one kind of this CTA, one lane.
  class Trace {
   public:
    __device__ __forceinline__ Trace(const Parameters& parameters, ApkTraceKind kind)
        : parameters_(parameters), kind_(kind) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor& tile, uint32_t first_k) {
      if (parameters_.trace == nullptr || count_ == parameters_.trace_capacity) return;
      const uint32_t list = blockIdx.x * kApkTraceKinds + static_cast<uint32_t>(kind_);
      parameters_.trace[size_t{list} * parameters_.trace_capacity + count_++] = {
          ptx::global_time_ns(), tile.epoch, tile.phase, tile.slot, static_cast<uint16_t>(first_k)};
    }

    // A tile is put by.
    __device__ __forceinline__ void parked() {
      const apk::StorageLayout layout(parameters_.limits);
      apk::DeviceMemory::count(
          &layout.cluster(parameters_.scheduler, blockIdx.x)->counters.preemptions, 1);
    }

   private:
    const Parameters& parameters_;
    ApkTraceKind kind_;
    uint32_t count_ = 0;
  };

  // The committer, one lane, when a tile's output is written.
  class Commit {
   public:
    __device__ __forceinline__ explicit Commit(const Parameters& parameters)
        : parameters_(parameters), trace_(parameters, ApkTraceKind::kCommits) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor& tile) {
      trace_(tile, 0);
      apk::TileScheduler<apk::DeviceMemory> scheduler(parameters_.limits, parameters_.scheduler);
      const bool fin = scheduler.commit(tile);
      if (!fin) return;
      // One release for both words.
      ptx::fence_release_system();
      scheduler.retire(tile, apk::Relaxed{});
      const uint32_t slot = apk_slot_index(parameters_.limits, tile.phase, tile.slot);
      apk::DeviceMemory::store(&parameters_.done[slot].value, apk::pack_epoch_value(tile.epoch, 1),
                               apk::Relaxed{}, apk::SystemScope{});
    }

   private:
    const Parameters& parameters_;
    Trace trace_;
  };

  // Where this CTA's math warps put the accumulators of an interrupted tile.
  class Parking {
   public:
    static constexpr bool kUsed = true;
    __device__ __forceinline__ explicit Parking(const Parameters& parameters)
        : parameters_(parameters) {}
    __device__ __forceinline__ float4* operator()() const {
      return parameters_.parking + size_t{blockIdx.x} * kParkedVectors;
    }

   private:
    const Parameters& parameters_;
  };

  template <GemmConfig kConfig>
  using Inbox = ApkInbox<kConfig>;

  // The last warp of CTA 0's first warpgroup.
  template <typename Committer>
  static __device__ __forceinline__ void run_agent(const Parameters& parameters,
                                                   Committer& committer) {
    ApkAgent<Committer>(parameters, committer).run();
  }

  // The scheduler warp of a CTA.
  template <GemmConfig kConfig>
  static __device__ __forceinline__ void run(const Parameters& parameters,
                                             SharedLayout<kConfig>* shared) {
    ApkSchedulerWarp<kConfig>(parameters, shared).run();
  }

  // One thread of a CTA, when all its roles have left: what they were waiting for, if they had to.
  static __device__ __forceinline__ void report(const Parameters& parameters,
                                                const uint32_t* left_waiting) {
    for (uint32_t warp = 0; warp < kCtaWarps; ++warp) {
      const uint32_t word = left_waiting[warp];
      if (word == 0) continue;
      const uint32_t entry = atomicAdd(parameters.left_count, 1);
      if (entry >= kApkMostLeft) return;
      parameters.report->left[entry] = {blockIdx.x, warp, (word & 0x7fffffff) - kSharedBase,
                                        word >> 31};
    }
  }
};

}  // namespace expertplex::cuda
