// The main pipeline's producer: one warp that loads the k tiles of each tile of work into the ring
// and stamps every stage with what it is. It is the only one that orders stages; math warps follow
// the stamps.
//
// Work comes in three queues (work_queue.h). Decode goes first; where the policy says so it
// interrupts a prefill tile between two k tiles: the last stage before it tells the math warps to
// put their accumulators by, the first stage after it to fetch them again.
//
// Row scales travel row-major with the rows; they come as TMA boxes of four k tiles (16 bytes) a
// row. Copying them with cp.async from all lanes cost the main pipeline 5 %: it takes the
// load/store unit from the math warps.
#pragma once

#include "apk/policy.h"
#include "cuda/device/lane_scales.h"
#include "cuda/device/shared_layout.h"
#include "cuda/device/wait.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

template <GemmConfig kConfig, typename Trace>
class MainProducer {
 public:
  using Shared = SharedLayout<kConfig>;
  __device__ __forceinline__ MainProducer(Shared* shared, const Trace& trace)
      : shared_(shared), trace_(trace) {}

  // Until kWorkEnd or an abort.
  __device__ __forceinline__ void run() {
    for (;;) {
      Turn turn;
      if (!next_turn(&turn)) return;
      const TileWork& work = shared_->main_work[turn.slot];
      if (work.flags & kWorkEnd) {
        end(turn.slot);
        return;
      }
      const uint32_t loaded = load(work, turn);
      if (loaded == kAborted) return;
      if (loaded < work.k_tiles) {
        parked_ = {turn.slot, loaded};
        continue;
      }
      __syncwarp();
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_work_empty[turn.slot]));
      }
      __syncwarp();
    }
  }

 private:
  static constexpr uint32_t kScaleRowBytes = kScaleGroup * 4;
  static constexpr uint32_t kScaleSlotBytes = kMainWideRows * kScaleRowBytes;
  static constexpr uint32_t kControl = kSharedBase + offsetof(Shared, control);
  static constexpr uint32_t kAborted = ~0u, kNone = ~0u;
  // Between two looks at both queues: whoever waits on the one's barrier sleeps through the other's
  // for microseconds, whatever limit the wait is given.
  static constexpr uint32_t kNapNanoseconds = 40;

  // What to load next: a work slot, from which k tile on.
  struct Turn {
    uint32_t slot = 0, first_k = 0;
  };

  __device__ __forceinline__ bool is_full(uint32_t first,
                                          const RingPosition<kWorkSlots>& position) const {
    return ptx::mbarrier_test_wait(
        ptx::shared_address(&shared_->main_work_full[first + position.stage]), position.parity);
  }
  __device__ __forceinline__ bool decode_ready() const {
    const bool owned = kConfig.has_resident() && is_full(kMainOwnedSlot, owned_);
    return agree(is_full(kMainUrgentSlot, urgent_) | owned);
  }
  __device__ __forceinline__ bool take_from(uint32_t first, RingPosition<kWorkSlots>& position,
                                            Turn* turn) {
    if (!agree(is_full(first, position))) return false;
    *turn = {first + position.stage, 0};
    position.advance();
    return true;
  }

  // Decode, then what it interrupted, then the next in turn. False: leave.
  __device__ __forceinline__ bool next_turn(Turn* turn) {
    for (;;) {
      if (kConfig.has_resident() && take_from(kMainOwnedSlot, owned_, turn)) return true;
      if (take_from(kMainUrgentSlot, urgent_, turn)) {
        begin(&shared_->begun.urgent);
        want(&shared_->wanted.urgent, &shared_->begun.urgent);
        return true;
      }
      if (parked_.first_k > 0) {
        *turn = parked_;
        parked_ = {};
        return true;
      }
      if (take_from(0, queue_, turn)) {
        begin(&shared_->begun.main);
        return true;
      }
      want(&shared_->wanted.main, &shared_->begun.main);
      const uint32_t full = ptx::shared_address(&shared_->main_work_full[queue_.stage]);
      if (__any_sync(0xffffffff, aborted<Shared>(full, queue_.parity))) return false;
      __nanosleep(kNapNanoseconds);
    }
  }

  // Returns how far it came: work.k_tiles, or the k tile from which it goes on after decode.
  __device__ __forceinline__ uint32_t load(const TileWork& work, const Turn& turn) {
    const GemmBinding* binding = work.binding;
    const uint32_t first_row = work.first_row;
    const uint32_t first_weight_row = work.first_weight_row;
    const uint32_t k_tiles = work.k_tiles;
    const bool swapped = work.flags & kWorkSwapped;
    const uint32_t flags =
        (swapped ? kStageSwapped : 0) | (work.flags & kWorkSecondWave ? kStageSecondWave : 0);
    if (turn.first_k > 0 || fetched_ != turn.slot) fetch_scales(work, turn.first_k);
    fetched_ = kNone;
    for (uint32_t k = turn.first_k; k < k_tiles; ++k) {
      const uint32_t stage = position_.stage;
      const uint32_t full = ptx::shared_address(&shared_->main_full[stage]);
      bool park = false;
      if (!swapped && !wait_turn(k, k_tiles, &park)) return kAborted;
      if (!warp_wait<Shared>(ptx::shared_address(&shared_->main_empty[stage]),
                             position_.parity ^ 1)) {
        return kAborted;
      }
      const uint32_t in_group = k % kScaleGroup;
      const bool new_group = in_group == 0 || k == turn.first_k;
      // Between a free stage and its loads nothing waits: three stages are hardly more than a round
      // trip. The phase cannot complete before the stamp's arrival, so the bytes may be expected
      // last.
      if (ptx::elect_one()) {
        const uint32_t wide = ptx::shared_address(shared_->main_wide[stage]);
        const uint32_t narrow = ptx::shared_address(shared_->main_narrow[stage]);
        ptx::tma_load_2d(swapped ? narrow : wide, &binding->rows_map, k * kTileK, first_row, full,
                         ptx::CacheHint::kNormal);
        ptx::tma_load_2d(swapped ? wide : narrow, &binding->weights_map, k * kTileK,
                         first_weight_row, full, ptx::CacheHint::kNormal);
        if (new_group) {
          ptx::tma_load_2d(ptx::shared_address(shared_->main_row_scales[scales_.stage]),
                           &binding->row_scales_map, k - in_group, first_row, full,
                           ptx::CacheHint::kNormal);
        }
        const uint32_t scale_bytes =
            new_group ? (swapped ? kMainNarrowRows : kMainWideRows) * kScaleRowBytes : 0;
        ptx::mbarrier_expect(full, (kMainWideRows + kMainNarrowRows) * kTileK + scale_bytes);
        if (k == turn.first_k) trace_(work.tile, k);
      }
      __syncwarp();
      // The loads are on their way before the first weight scale has come.
      const float scale0 = scales0_.at(k), scale1 = scales1_.at(k);
      if (k + 1 == k_tiles) {
        fetch_next();
      } else if (LaneScales::ends(k)) {
        fetch_scales(work, k + 1);
      }
      if (ptx::elect_one()) {
        StageStamp stamp;
        stamp.flags = (park ? kParkSlot : turn.slot) | flags |
                      (park || k + 1 == k_tiles ? kStageLast : 0) |
                      (k == turn.first_k && k > 0 ? kStageResume : 0);
        stamp.scale_offset = scales_.stage * kScaleSlotBytes + in_group * 4;
        stamp.weight_scale[0] = scale0;
        stamp.weight_scale[1] = scale1;
        shared_->main_stamp[stage] = stamp;
        ptx::mbarrier_arrive(full);
        if (park) trace_.parked();
      }
      __syncwarp();
      if (in_group == kScaleGroup - 1 || k + 1 == k_tiles || park) scales_.advance();
      position_.advance();
      if (loaded_ < kConfig.main_stages) ++loaded_;
      if (park) return k + 1;
      if (k == turn.first_k) want(&shared_->wanted.main, &shared_->begun.main);
    }
    return k_tiles;
  }

  __device__ __forceinline__ void fetch_scales(const TileWork& work, uint32_t k) {
    const uint32_t k_tiles = work.k_tiles;
    scales0_.fetch(work.weight_scales, k_tiles, k);
    scales1_.fetch(work.weight_scales + (work.flags & kWorkSwapped ? k_tiles : 0), k_tiles, k);
  }
  // Of the tile that is next in turn, if it is known.
  __device__ __forceinline__ void fetch_next() {
    if (!agree(is_full(0, queue_))) return;
    const TileWork& next = shared_->main_work[queue_.stage];
    if (next.flags & kWorkEnd) return;
    fetch_scales(next, 0);
    fetched_ = queue_.stage;
  }

  // One word: all lanes see the same. A load of 16 bytes goes to a warp's lanes in four parts; a
  // word that changes between them splits the warp, which ptxas takes for converged, for good.
  static __device__ __forceinline__ uint32_t load_control(uint32_t offset) {
    return ptx::load_shared_word(kControl + offset);
  }

  // Before a prefill stage: gives way to decode, and keeps to the pause policy. False: leave.
  __device__ __forceinline__ bool wait_turn(uint32_t k, uint32_t k_tiles, bool* park) {
    for (;;) {
      if (load_control(offsetof(ProducerControl, park)) != 0 && decode_ready()) {
        // Not before an even k tile, and not before the last one: scale slots are used again after
        // two groups, which is safe where each has two k tiles or more.
        *park = k % 2 == 1 && k + 2 < k_tiles;
        return true;
      }
      const uint32_t pause = load_control(offsetof(ProducerControl, resident_loads)) != 0
                                 ? load_control(offsetof(ProducerControl, pause))
                                 : 0;
      if (pause == 0 || agree(has_window(pause))) return true;
      if (__any_sync(0xffffffff, aborted<Shared>(kControl, 0))) return false;
    }
  }

  // Window W: at most W stages are loaded and not consumed; all: nothing is loaded until the policy
  // changes. Math warps starve with their accumulators in registers.
  __device__ __forceinline__ bool has_window(uint32_t pause) const {
    const uint32_t window =
        apk::loads_in_flight(static_cast<apk::PausePolicy>(pause), kConfig.main_stages);
    if (window == kConfig.main_stages) return true;
    if (window == 0) return false;
    // The stage `window` loads ago must be consumed: by its parity, as of its own load.
    const bool wraps = position_.stage < window;
    const uint32_t back = position_.stage + (wraps ? kConfig.main_stages : 0) - window;
    const uint32_t parity = position_.parity ^ (wraps ? 1 : 0);
    return loaded_ < window ||
           ptx::mbarrier_test_wait(ptx::shared_address(&shared_->main_empty[back]), parity);
  }

  __device__ __forceinline__ void end(uint32_t slot) {
    if (!warp_wait<Shared>(ptx::shared_address(&shared_->main_empty[position_.stage]),
                           position_.parity ^ 1)) {
      return;
    }
    if (ptx::elect_one()) {
      shared_->main_stamp[position_.stage].flags = kStageEnd | slot;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_full[position_.stage]));
      ptx::mbarrier_arrive(ptx::shared_address(&shared_->main_work_empty[slot]));
    }
  }

  Shared* shared_;
  Trace trace_;
  RingPosition<kWorkSlots> queue_, urgent_, owned_;
  LaneScales scales0_, scales1_;
  uint32_t fetched_ = kNone;  // work slot whose first scales were sent for
  Turn parked_;               // first_k > 0: a tile to go on with
  RingPosition<kConfig.main_stages> position_;
  RingPosition<Shared::kScaleSlots> scales_;
  uint32_t loaded_ = 0;  // stages loaded so far, up to a ring's length
};

}  // namespace expertplex::cuda
