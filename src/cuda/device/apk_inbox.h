// What arrives for a CTA by itself: the GateUp tiles that its cluster owns (apk/announcement.h).
// The resident producer looks here while it has nothing to load, so the first load of an operation
// waits for nobody but who sent it.
//
// A look is one round trip, which brings all that a tile needs: ready and offer words of every
// slot, a lane each, and beside them the counts of the slot that is expected to come next, two a
// lane. The loads are relaxed; what is new is acquired by a fence that waits for nothing. Beside a
// prefill a round trip takes 2 us: answers queue behind the prefill's loads.
//
// While the producer loads a tile it only glances, by asynchronous copies of the ready words that
// nobody waits for, and looks when it has seen something. All that the inbox remembers lies in
// shared memory: the producer's registers are its loop's.
#pragma once

#include "cuda/device/announced_tile.h"
#include "cuda/device/work_queue.h"
#include "cuda/ptx/copy_async.h"
#include "cuda/ptx/fences.h"
#include "cuda/ptx/tma.h"

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
    if (lane >= kApkInboxSlots) return;
    InboxEntry entry;
    if (lane < p_.limits.slots[1]) {
      const apk::OperationTemplate& shape =
          *layout.operation_template(p_.scheduler, apk::Phase::kDecode, lane);
      const uint32_t columns = shape.gate_up_columns();
      entry.row_block = static_cast<uint16_t>(blockIdx.x / columns);
      entry.column_tile = static_cast<uint16_t>(blockIdx.x % columns);
      entry.experts = shape.announced ? shape.experts : 0;
      entry.resident = shape.pipeline == apk::PipelineRole::kResident;
    }
    entry.next_slot = static_cast<uint16_t>(lane);
    shared_->inbox[lane] = entry;
    shared_->inbox_seen[lane][0] = 0;
  }

  // Sends a glance on its way, if the last one is back.
  __device__ __forceinline__ void glance() {
    if (glanced_ && !is_back()) return;
    glanced_ = true;
    parity_ ^= 1;
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kApkInboxSlots && shared_->inbox[lane].experts > 0) {
      ptx::copy_async_16(ptx::shared_address(shared_->inbox_seen[lane]), &box(lane).ready);
    }
    ptx::copy_async_arrive(seen_barrier());
    __syncwarp();
  }

  // Whether the last glance is back and has seen an operation that nobody has looked at.
  __device__ __forceinline__ bool has_news() {
    if (!glanced_ || !is_back()) return false;
    glanced_ = false;
    const uint32_t lane = threadIdx.x % 32;
    return __any_sync(kAll, lane < kApkInboxSlots && is_news(lane, shared_->inbox_seen[lane][0]));
  }

  // Hands the tiles of what has come to their pipelines' queues.
  __device__ __forceinline__ void look() {
    const uint32_t lane = threadIdx.x % 32;
    const bool looks = lane < kApkInboxSlots && shared_->inbox[lane].experts > 0;
    ptx::WordPair counts = load_counts(expected_);
    ptx::WordPair seen;
    if (looks) seen = ptx::load_word_pair(&box(lane).ready);
    uint32_t fresh = __ballot_sync(kAll, looks && is_news(lane, seen.first));
    if (fresh == 0) return;
    // The ready words were seen in the generic proxy; TMA reads the rows.
    ptx::fence_acquire_system();
    ptx::fence_proxy_async_global();
#pragma unroll 1
    for (; fresh != 0; fresh &= fresh - 1) {
      const uint32_t slot = static_cast<uint32_t>(__ffs(static_cast<int>(fresh))) - 1;
      if (slot != expected_) counts = load_counts(slot);
      const uint64_t ready = __shfl_sync(kAll, seen.first, slot);
      if (!take(slot, ready, __shfl_sync(kAll, seen.second, slot), counts)) continue;
      if (lane == 0) {
        shared_->inbox[slot].taken = ready;
        shared_->inbox[last_].next_slot = static_cast<uint16_t>(slot);
      }
      __syncwarp();
      last_ = slot;
      expected_ = shared_->inbox[slot].next_slot;
    }
  }

 private:
  static constexpr uint32_t kAll = 0xffffffff;
  static_assert(offsetof(ApkSlot, ready) % 16 == 0 && offsetof(ApkSlot, offer) == 8);
  static_assert(offsetof(ApkSlot, rows_per_expert) % 16 == 0, "counts are loaded by pairs");

  __device__ __forceinline__ const ApkSlot& box(uint32_t slot) const {
    return p_.slots[apk_slot_index(p_.limits, apk::Phase::kDecode, slot)];
  }
  __device__ __forceinline__ ptx::WordPair load_counts(uint32_t slot) const {
    return AnnouncedTile::load_counts(box(slot), shared_->inbox[slot].experts);
  }
  __device__ __forceinline__ bool is_news(uint32_t slot, uint64_t ready) const {
    const uint32_t taken = static_cast<uint32_t>(shared_->inbox[slot].taken >> 32);
    return apk::is_earlier(taken, static_cast<uint32_t>(ready >> 32));
  }
  __device__ __forceinline__ uint32_t seen_barrier() const {
    return ptx::shared_address(shared_->inbox_seen_full);
  }
  __device__ __forceinline__ bool is_back() const {
    return agree(ptx::mbarrier_test_wait(seen_barrier(), parity_));
  }

  // False: not now: counts or offer have not come yet, or the queue is full.
  __device__ __forceinline__ bool take(uint32_t slot, uint64_t ready, uint64_t offer,
                                       const ptx::WordPair& counts) {
    const InboxEntry& entry = shared_->inbox[slot];
    const bool resident = entry.resident != 0;
    const apk::Announcement a{static_cast<uint32_t>(ready >> 32), static_cast<uint32_t>(ready) - 1,
                              slot};
    const uint32_t clusters = resident ? p_.limits.clusters : apk::offered_clusters(offer, a.epoch);
    if (clusters == apk::kNotOffered) return false;
    // A layer that does not exist: the agent refuses the request.
    if (clusters <= blockIdx.x || a.layer >= p_.layers) return true;
    if (!agree(resident ? resident_.has_room() : main_.has_room())) return false;
    AnnouncedTile found(p_, entry);
    const OwnTile answer = found.find(a, counts, resident ? kResidentRows : kMainNarrowRows);
    if (answer != OwnTile::kTile) return answer == OwnTile::kNone;
    push(slot, a.layer, resident, found.tile);
    return true;
  }

  __device__ __forceinline__ void push(uint32_t slot, uint32_t layer, bool resident,
                                       const apk::TileDescriptor& tile) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t index = apk_slot_index(p_.limits, apk::Phase::kDecode, slot);
    const GemmBinding* binding = &p_.bindings[index * p_.layers + layer];
    InboxEntry& entry = shared_->inbox[slot];
    ptx::copy_async_wait();  // for the head, sent for at the slot's last operation
    __syncwarp();
    if (lane == 0) {
      const BindingHead head = entry.head_layer == layer ? entry.head : load_head(binding);
      if (resident) {
        resident_.push(binding, head, tile);
      } else {
        main_.push(binding, head, tile);
      }
      const apk::StorageLayout layout(p_.limits);
      Memory::count(&layout.cluster(p_.scheduler, blockIdx.x)
                         ->counters.tiles[apk::phase_index(apk::Phase::kDecode)]
                                         [static_cast<uint32_t>(apk::TileKind::kGateUp)],
                    1);
    } else {
      resident ? resident_.advance() : main_.advance();
    }
    __syncwarp();
    // The slot's next operation is most probably the next layer's.
    const uint32_t next = layer + 1 == p_.layers ? 0 : layer + 1;
    if (entry.head_layer == next) return;
    send_for(entry, p_.bindings[index * p_.layers + next]);
    __syncwarp();
    if (lane == 0) entry.head_layer = static_cast<uint16_t>(next);
    __syncwarp();
  }

  // A binding's head and tensor maps.
  __device__ __forceinline__ void send_for(InboxEntry& entry, const GemmBinding& binding) {
    const uint32_t lane = threadIdx.x % 32;
    static_assert(sizeof(BindingHead) == 48 && offsetof(GemmBinding, head) == 384);
    if (lane >= 3) return;
    ptx::copy_async_16(ptx::shared_address(&entry.head) + lane * 16,
                       reinterpret_cast<const uint4*>(&binding.head) + lane);
    ptx::prefetch_tensor_map(&binding.rows_map + lane);
  }

  const ApkParameters& p_;
  Shared* shared_;
  WorkQueue<kConfig, Queue::kResidentOwned> resident_;
  WorkQueue<kConfig, Queue::kMainOwned> main_;
  uint32_t parity_ = 1;               // of the last glance
  bool glanced_ = false;              // it has not been looked at
  uint32_t last_ = 0, expected_ = 0;  // slots: of the last operation, of the next one
};

}  // namespace expertplex::cuda
