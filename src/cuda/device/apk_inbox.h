// What arrives for a CTA by itself: the GateUp tiles that its cluster owns (apk/announcement.h).
// The resident producer looks here while it has nothing to load, and now and then while it does, so
// the first load of an operation waits for nobody but who sent or announced it.
//
// A look is an asynchronous copy of the ready words of the resident pipeline's operations and of
// the announcement to the main one, a lane each: nobody waits for it. What is found costs one round
// trip more: counts, binding and the acquire of the ready word side by side. Beside a prefill a
// round trip takes 2 us: answers queue behind the prefill's loads.
//
// All that the inbox remembers lies in shared memory: the producer's registers are its loop's. A
// look by plain loads was spilled at once, and so waited for at once.
#pragma once

#include "cuda/device/announced_tile.h"
#include "cuda/ptx/copy_async.h"
#include "cuda/ptx/fences.h"

namespace expertplex::cuda {

template <GemmConfig kConfig>
class ApkInbox {
 public:
  using Memory = apk::DeviceMemory;
  using Shared = SharedLayout<kConfig>;
  static constexpr bool kUsed = true;

  __device__ __forceinline__ ApkInbox(const ApkParameters& parameters, Shared* shared)
      : p_(parameters), shared_(shared), resident_(shared), main_(shared) {
    const apk::StorageLayout layout(p_.limits);
    const uint32_t lane = threadIdx.x % 32;
    if (lane >= kInboxWords) return;
    InboxEntry entry;
    if (lane < min(kApkInboxSlots, p_.limits.slots[1])) {
      const apk::OperationTemplate& shape =
          *layout.operation_template(p_.scheduler, apk::Phase::kDecode, lane);
      const uint32_t columns = shape.gate_up_columns();
      entry.row_block = static_cast<uint16_t>(blockIdx.x / columns);
      entry.column_tile = static_cast<uint16_t>(blockIdx.x % columns);
      entry.experts = static_cast<uint16_t>(shape.experts);
      entry.looks = shape.announced && shape.pipeline == apk::PipelineRole::kResident;
    }
    entry.looks |= lane == kAnnouncement;
    shared_->inbox[lane] = entry;
    shared_->inbox_seen[lane][0] = 0;
  }

  // Sends the next look on its way, if the last one is back.
  __device__ __forceinline__ void look() {
    if (!is_back()) return;
    parity_ ^= 1;
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kInboxWords && shared_->inbox[lane].looks) {
      const uint64_t* word =
          lane == kAnnouncement
              ? &apk::StorageLayout(p_.limits).shared(p_.scheduler)->announced
              : &p_.slots[apk_slot_index(p_.limits, apk::Phase::kDecode, lane)].ready;
      ptx::copy_async_16(ptx::shared_address(shared_->inbox_seen[lane]), word);
    }
    ptx::copy_async_arrive(seen_barrier());
    __syncwarp();
  }

  // Hands the tiles that the last look found, if it is back, to their pipelines' queues.
  __device__ __forceinline__ void take() {
    if (!is_back()) return;
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t seen = lane < kInboxWords ? shared_->inbox_seen[lane][0] : 0;
    const uint64_t taken = lane < kInboxWords ? shared_->inbox[lane].taken : 0;
    uint32_t fresh = __ballot_sync(kAll, seen != taken);
#pragma unroll 1
    for (; fresh != 0; fresh &= fresh - 1) {
      const uint32_t from = static_cast<uint32_t>(__ffs(static_cast<int>(fresh))) - 1;
      const uint64_t word = __shfl_sync(kAll, seen, from);
      if (take_one(from, word) && lane == from) shared_->inbox[lane].taken = word;
    }
  }

 private:
  static constexpr uint32_t kAll = 0xffffffff, kAnnouncement = kApkInboxSlots;
  static_assert(offsetof(apk::SharedState, announced) % 16 == 0, "it is copied by 16 bytes");
  static_assert(offsetof(ApkSlot, ready) % 16 == 0);

  __device__ __forceinline__ uint32_t seen_barrier() const {
    return ptx::shared_address(shared_->inbox_seen_full);
  }
  __device__ __forceinline__ bool is_back() const {
    return agree(ptx::mbarrier_test_wait(seen_barrier(), parity_));
  }

  __device__ __forceinline__ apk::Announcement of_word(uint32_t lane, uint64_t word) const {
    if (lane == kAnnouncement) return apk::unpack_announcement(word);
    const uint32_t layer = static_cast<uint32_t>(word) - 1;
    return {static_cast<uint32_t>(word >> 32), layer, lane, p_.limits.clusters};
  }

  // False: not now: its counts have not come yet, or its queue is full.
  __device__ __forceinline__ bool take_one(uint32_t lane, uint64_t word) {
    const bool main = lane == kAnnouncement;
    const apk::Announcement a = of_word(lane, word);
    if (a.clusters <= blockIdx.x) return true;
    if (!__all_sync(kAll, main ? main_.has_room() : resident_.has_room())) return false;
    AnnouncedTile found(p_, shared_->inbox[a.slot]);
    const OwnTile answer = found.find(a, main ? kMainNarrowRows : kResidentRows);
    if (answer != OwnTile::kTile) return answer == OwnTile::kNone;
    if (threadIdx.x % 32 == 0) {
      // The ready word was acquired in the generic proxy; TMA reads the rows.
      ptx::fence_proxy_async_global();
      if (main) {
        main_.push(found.binding, found.head, found.tile);
      } else {
        resident_.push(found.binding, found.head, found.tile);
      }
      const apk::StorageLayout layout(p_.limits);
      Memory::count(&layout.cluster(p_.scheduler, blockIdx.x)
                         ->counters.tiles[apk::phase_index(apk::Phase::kDecode)]
                                         [static_cast<uint32_t>(apk::TileKind::kGateUp)],
                    1);
    } else {
      main ? main_.advance() : resident_.advance();
    }
    __syncwarp();
    return true;
  }

  const ApkParameters& p_;
  Shared* shared_;
  WorkQueue<kConfig, Queue::kResidentOwned> resident_;
  WorkQueue<kConfig, Queue::kMainOwned> main_;
  uint32_t parity_ = 1;  // of the last look; a fresh barrier passes it
};

}  // namespace expertplex::cuda
