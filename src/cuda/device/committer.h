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

  // One look at every queue, all lanes, decode first. False: everything is committed, or the CTA is
  // aborted.
  __device__ __forceinline__ bool poll() {
    look_at_owned();
    if constexpr (kConfig.has_resident()) {
      resident_ended_ |= look_at_resident(0, resident_);
    }
    look_at_main(kMainUrgentSlot, urgent_);
    main_ended_ |= look_at_main(0, main_);
    if (main_ended_ && resident_ended_) {
      commit_the_rest();
      return false;
    }
    return *reinterpret_cast<volatile uint32_t*>(&shared_->control.abort) == 0;
  }

  __device__ __forceinline__ void run() {
    // A warp that only looks takes half the issue slots from its math warps; one that waits on a
    // barrier misses what the others of its barriers say.
    while (poll()) __nanosleep(kNapNanoseconds);
  }

 private:
  static constexpr uint32_t kNapNanoseconds = 100;

  // The last urgent and owned tiles were done before the ends were, but perhaps after the looks at
  // them.
  __device__ __forceinline__ void commit_the_rest() {
    for (uint32_t i = 0; i < kWorkSlots; ++i) {
      look_at_main(kMainUrgentSlot, urgent_);
      look_at_owned();
    }
  }

  __device__ __forceinline__ void look_at_owned() {
    if constexpr (kConfig.has_resident()) {
      look_at_resident(kResidentOwnedSlot, resident_owned_);
      look_at_main(kMainOwnedSlot, main_owned_);
    }
  }
  __device__ __forceinline__ bool look_at_main(uint32_t slot, RingPosition<kWorkSlots>& position) {
    return look_at(shared_->main_work + slot, shared_->main_work_done + slot,
                   shared_->main_work_empty + slot, position);
  }
  __device__ __forceinline__ bool look_at_resident(uint32_t slot,
                                                   RingPosition<kWorkSlots>& position) {
    return look_at(shared_->resident_work + slot, shared_->resident_work_done + slot,
                   shared_->resident_work_empty + slot, position);
  }

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
  Commit commit_;
  RingPosition<kWorkSlots> main_, urgent_, main_owned_, resident_, resident_owned_;
  bool main_ended_ = false, resident_ended_ = !kConfig.has_resident();
};

}  // namespace expertplex::cuda
