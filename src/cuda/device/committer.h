// The committer: publishes tiles whose outputs are written, so that math warps need not: the fence
// and the round trip of a commit would stall a warpgroup for a microsecond a tile.
//
// A warp of its own in every CTA but the first, where the deciding agent does it between two looks.
// Math warps store and arrive on the work's done barrier (CTA scope); the commit's release makes
// these stores visible to the device, by cumulativity.
#pragma once

#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig, typename Commit>
class Committer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ Committer(Shared* shared, const Commit& commit)
      : shared_(shared), commit_(commit) {}

  // One look at every queue, all lanes, of `nanoseconds` at most: asleep on what decode waits for
  // (a warp that only looks takes half the issue slots from its math warps). False: everything is committed, or the CTA is aborted.
  __device__ __forceinline__ bool poll(uint32_t nanoseconds) {
    look_at(shared_->main_work + kUrgentSlot, shared_->main_work_done + kUrgentSlot,
            shared_->main_work_empty + kUrgentSlot, urgent_);
    main_ended_ |=
        look_at(shared_->main_work, shared_->main_work_done, shared_->main_work_empty, main_);
    if constexpr (kConfig.has_resident()) {
      if (nanoseconds > 0) {
        ptx::mbarrier_try_wait_for(
            ptx::shared_address(&shared_->resident_work_done[resident_.stage]), resident_.parity,
            nanoseconds);
      }
      resident_ended_ |= look_at(shared_->resident_work, shared_->resident_work_done,
                                 shared_->resident_work_empty, resident_);
    } else if (nanoseconds > 0) {
      __nanosleep(nanoseconds);
    }
    if (main_ended_ && resident_ended_) {
      // The last urgent tiles were done before the end was, but perhaps after the look at them.
      for (uint32_t i = 0; i < kWorkSlots; ++i) {
        look_at(shared_->main_work + kUrgentSlot, shared_->main_work_done + kUrgentSlot,
                shared_->main_work_empty + kUrgentSlot, urgent_);
      }
      return false;
    }
    return *reinterpret_cast<volatile uint32_t*>(&shared_->control.abort) == 0;
  }

  __device__ __forceinline__ void run() {
    while (poll(kNapNanoseconds)) {
    }
  }

 private:
  static constexpr uint32_t kNapNanoseconds = 250;

  // True: the queue's end.
  __device__ __forceinline__ bool look_at(const TileWork* work, uint64_t* done, uint64_t* empty,
                                          RingPosition<kWorkSlots>& position) {
    const bool ready =
        ptx::mbarrier_test_wait(ptx::shared_address(&done[position.stage]), position.parity);
    if (!agree(ready)) return false;
    const bool end = work[position.stage].flags & kWorkEnd;
    if (ptx::elect_one()) {
      if (!end) commit_(work[position.stage].tile);
      ptx::mbarrier_arrive(ptx::shared_address(&empty[position.stage]));
    }
    __syncwarp();
    position.advance();
    return end;
  }

  Shared* shared_;
  const Commit& commit_;
  RingPosition<kWorkSlots> main_, urgent_, resident_;
  bool main_ended_ = false, resident_ended_ = !kConfig.has_resident();
};

}  // namespace expertplex::cuda
