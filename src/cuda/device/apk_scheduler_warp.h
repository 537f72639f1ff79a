// The scheduler warp of a CTA in the adaptive persistent kernel: claims tiles for both pipelines
// and hands them to their producers through queues, so no two roles can disagree. A CTA is a
// cluster. Tiles that the cluster owns without a claim come by the inbox (apk_inbox.h).
//
// A look is one load by three lanes.
#pragma once

#include "apk/device_memory.h"
#include "apk/scheduler.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/work_queue.h"
#include "cuda/ptx/fences.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class ApkSchedulerWarp {
 public:
  using Memory = apk::DeviceMemory;
  using Shared = SharedLayout<kConfig>;
  using Windows = apk::TileScheduler<Memory>::SeenWindows;

  __device__ __forceinline__ ApkSchedulerWarp(const ApkParameters& parameters, Shared* shared)
      : p_(parameters),
        layout_(parameters.limits),
        scheduler_(parameters.limits, parameters.scheduler),
        shared_(shared),
        main_queue_(shared),
        urgent_queue_(shared),
        resident_queue_(shared),
        lane_(threadIdx.x % 32) {
    main_.cluster = resident_.cluster = blockIdx.x;
    resident_.role = apk::PipelineRole::kResident;
    const apk::SharedState* state = layout_.shared(p_.scheduler);
    word_ = &layout_.cluster(p_.scheduler, blockIdx.x)->preempt_word;
    if (lane_ == kPrefillWindow) word_ = &state->ready_window[0];
    if (lane_ == kDecodeWindow) word_ = &state->ready_window[1];
  }

  // Until an abort; then tells the pipelines.
  __device__ __forceinline__ void run() {
    uint64_t last = ~uint64_t{0};
    uint32_t naps = 0;
    for (;;) {
      const uint64_t seen = load();
      // While the load is under way: its math warps need the issue slots.
      __nanosleep(kNapNanoseconds);
      if (__any_sync(kAll, lane_ < kWords && seen != last)) {
        last = seen;
        naps = 0;
        tell_producers(static_cast<uint32_t>(__shfl_sync(kAll, seen, kDecision)));
        if (decision_.abort) break;
        prefill_ = __shfl_sync(kAll, seen, kPrefillWindow);
        decode_ = __shfl_sync(kAll, seen, kDecodeWindow);
      }
      // Where a claim finds nothing, all is claimed, most of the time for good.
      if (naps > 0) {
        --naps;
      } else if (!claim()) {
        naps = kLooksBetweenClaims;
      }
    }
    leave();
  }

 private:
  static constexpr uint32_t kAll = 0xffffffff;
  enum Lane : uint32_t { kDecision, kPrefillWindow, kDecodeWindow, kWords };
  static constexpr uint32_t kLooksBetweenClaims = 4;
  static constexpr uint32_t kNapNanoseconds = 200;
  static constexpr uint64_t kLeaveLimitNs = 100'000'000;

  __device__ __forceinline__ uint64_t load() const {
    return Memory::load(word_, apk::Relaxed{}, apk::DeviceScope{});
  }

  __device__ __forceinline__ void tell_producers(uint32_t decision) {
    decision_ = apk::unpack_decision(decision);
    if (lane_ != 0) return;
    shared_->control.pause = static_cast<uint32_t>(decision_.pause);
    shared_->control.park = decision_.park;
  }

  // One claim for each pipeline that wants a tile. False: there was none to be had.
  __device__ __forceinline__ bool claim() {
    uint32_t found = 0, tried = 0;
    if (lane_ == 0) {
      const uint4 wanted =
          ptx::load_shared_words(kSharedBase + static_cast<uint32_t>(offsetof(Shared, wanted)));
      if (apk::window_has_entry_for(decode_, apk::PipelineRole::kResident) &&
          resident_queue_.pushed() < wanted.z && resident_queue_.has_room()) {
        tried = 1;
        const apk::Claim claim = scheduler_.next(resident_, decision_, Windows{0, decode_});
        if (claim.status == apk::ClaimStatus::kTile) {
          push(resident_queue_, claim.tile);
          found = 1;
        }
      }
      Windows windows;
      if (main_queue_.pushed() < wanted.x && main_queue_.has_room()) windows.prefill = prefill_;
      if (apk::window_has_entry_for(decode_, apk::PipelineRole::kMain) &&
          urgent_queue_.pushed() < wanted.y && urgent_queue_.has_room()) {
        windows.decode = decode_;
      }
      if (windows.prefill != 0 || windows.decode != 0) {
        tried = 1;
        const apk::Claim claim = scheduler_.next(main_, decision_, windows);
        if (claim.status == apk::ClaimStatus::kTile) {
          if (claim.tile.phase == apk::Phase::kPrefill) {
            push(main_queue_, claim.tile);
          } else {
            push(urgent_queue_, claim.tile);
          }
          found = 1;
        }
      }
    }
    return __shfl_sync(kAll, found, 0) >= __shfl_sync(kAll, tried, 0);
  }

  template <typename WorkQueue>
  __device__ __forceinline__ void push(WorkQueue& queue, const apk::TileDescriptor& tile) {
    // The claim acquired what the ready word released, in the generic proxy; TMA reads it next.
    ptx::fence_proxy_async_global();
    const uint32_t slot = apk_slot_index(p_.limits, tile.phase, tile.slot);
    const GemmBinding* binding = &p_.bindings[slot * p_.layers + tile.layer];
    queue.push(binding, load_head(binding), tile);
  }

  __device__ __forceinline__ void leave() {
    if (lane_ != 0) return;
    // A producer that a pause holds back in mid-tile would never come to the end of its work.
    shared_->control.pause = static_cast<uint32_t>(apk::PausePolicy::kNever);
    const uint64_t start = ptx::global_time_ns();
    while (!main_queue_.has_room() || !resident_queue_.has_room()) {
      if (ptx::global_time_ns() - start > kLeaveLimitNs) {
        shared_->control.abort = 1;
        return;
      }
    }
    main_queue_.push_end();
    resident_queue_.push_end();
  }

  const ApkParameters& p_;
  const apk::StorageLayout layout_;
  apk::TileScheduler<Memory> scheduler_;
  Shared* shared_;
  WorkQueue<kConfig, Queue::kMain> main_queue_;
  WorkQueue<kConfig, Queue::kMainUrgent> urgent_queue_;
  WorkQueue<kConfig, Queue::kResident> resident_queue_;
  const uint32_t lane_;
  const uint64_t* word_;  // the word that this lane looks at
  apk::PipelineState main_, resident_;
  apk::Decision decision_;
  uint64_t prefill_ = 0, decode_ = 0;  // the ready windows
};

}  // namespace expertplex::cuda
