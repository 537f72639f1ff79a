// The deciding agent on the GPU: one warp of CTA 0, which takes the role of apk/deciding_agent.h
// once and keeps it. The protocol is the same, word for word; what differs is that lanes look side
// by side, one operation slot each, so that a look is one round trip however much is in flight, and
// that what only the agent needs to know stays in its registers.
#pragma once

#include "apk/deciding_agent.h"
#include "apk/device_memory.h"
#include "apk/scheduler.h"
#include "cuda/device/apk_state.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

constexpr uint32_t kAllLanes = 0xffffffff;

template <typename Committer>
class ApkAgent {
 public:
  using Memory = apk::DeviceMemory;

  __device__ __forceinline__ ApkAgent(const ApkParameters& parameters, Committer& committer)
      : p_(parameters), layout_(parameters.limits), committer_(committer), lane_(threadIdx.x % 32) {
    // Decode first: it is what waits.
    const uint32_t decode_slots = p_.limits.slots[1];
    valid_ = lane_ < decode_slots + p_.limits.slots[0];
    phase_ = lane_ < decode_slots ? apk::Phase::kDecode : apk::Phase::kPrefill;
    slot_ = lane_ < decode_slots ? lane_ : lane_ - decode_slots;
    if (!valid_) slot_ = 0, phase_ = p_.limits.slots[0] > 0 ? apk::Phase::kPrefill : phase_;
    const apk::OperationTemplate& shape = *view(phase_, slot_).shape;
    role_ = shape.pipeline;
    announced_ = valid_ && shape.announced;
    ready_word_ = &mailbox(phase_, slot_).ready;
  }

  // Until an abort has been told to all clusters; then the CTA's own commits to their end.
  __device__ __forceinline__ void run() {
    read_policy();
    decide();
    for (uint32_t round = 1;; ++round) {
      const uint64_t seen = load_ready();
      // While the load is under way.
      if (!committer_.poll()) return;
      bool changed = false;
      uint32_t fresh = __ballot_sync(kAllLanes, is_fresh(seen));
      if (fresh != 0) {
        changed = true;
#pragma unroll 1
        for (; fresh != 0; fresh &= fresh - 1) {
          submit(static_cast<uint32_t>(__ffs(static_cast<int>(fresh))) - 1, seen);
        }
      } else if (busy_ && look()) {
        changed = true;
      }
      if (round % kSlowRounds == 0) {
        slow_look();
        changed = true;
      }
      if (changed && !decide()) break;
    }
    committer_.run();
  }

 private:
  // Rounds between two looks at policy, stop word and the operations' limit.
  static constexpr uint32_t kSlowRounds = 64;

  __device__ __forceinline__ apk::SharedState* shared() const {
    return layout_.shared(p_.scheduler);
  }
  __device__ __forceinline__ apk::SlotView view(apk::Phase phase, uint32_t slot) const {
    return layout_.slot(p_.scheduler, phase, slot);
  }
  __device__ __forceinline__ ApkSlot& mailbox(apk::Phase phase, uint32_t slot) const {
    return p_.slots[apk_slot_index(p_.limits, phase, slot)];
  }
  __device__ __forceinline__ uint64_t load_ready() const {
    return Memory::load(ready_word_, apk::Relaxed{}, apk::SystemScope{});
  }
  __device__ __forceinline__ bool is_fresh(uint64_t ready) const {
    const uint32_t epoch = static_cast<uint32_t>(ready >> 32);
    return valid_ && epoch != 0 && epoch != submitted_ && !in_flight_;
  }

  // At what is in flight, a slot per lane. True: something has changed.
  __device__ __forceinline__ bool look() {
    bool retired = false;
    const bool unclaimed = unclaimed_;
    if (in_flight_) {
      const apk::SlotView slot = view(phase_, slot_);
      const uint32_t finished =
          Memory::load(&slot.words->finished, apk::Relaxed{}, apk::DeviceScope{});
      const apk::UnclaimedTiles left = apk::find_unclaimed_tiles<Memory>(slot);
      // An operation of the resident pipeline may be over before it is seen here, and the next one
      // too.
      retired = !apk::is_earlier(finished, submitted_);
      in_flight_ = !retired;
      unclaimed_ = !retired && left.any;
      row_blocks_ = left.row_blocks;
    }
    if (__any_sync(kAllLanes, retired)) refresh_windows();
    return __any_sync(kAllLanes, retired || unclaimed != unclaimed_);
  }

  // The up to eight oldest operations of each phase, as claimers see them.
  __device__ __forceinline__ void refresh_windows() {
    busy_ = __any_sync(kAllLanes, in_flight_);
#pragma unroll 1
    for (uint32_t p = 0; p < apk::kPhaseCount; ++p) {
      const apk::Phase phase = static_cast<apk::Phase>(p);
      uint64_t window = 0;
      uint32_t rest = __ballot_sync(kAllLanes, in_flight_ && phase_ == phase);
#pragma unroll 1
      for (uint32_t length = 0; rest != 0 && length < apk::kReadyWindow; ++length) {
        const uint32_t oldest = oldest_of(rest);
        const uint64_t entry = __shfl_sync(kAllLanes, apk::pack_window_entry(slot_, role_), oldest);
        window |= (entry & 0xFF) << (8 * length);
        rest &= ~(1u << oldest);
      }
      uint64_t& published = phase == apk::Phase::kDecode ? decode_window_ : prefill_window_;
      if (window == published) continue;
      published = window;
      __syncwarp();
      if (lane_ == 0) {
        Memory::store(&shared()->ready_window[apk::phase_index(phase)], window, apk::Release{},
                      apk::DeviceScope{});
      }
    }
  }
  __device__ __forceinline__ uint32_t oldest_of(uint32_t lanes) const {
    const bool mine = lanes >> lane_ & 1;
    const uint32_t first = __reduce_min_sync(kAllLanes, mine ? sequence_ : ~0u);
    return static_cast<uint32_t>(
               __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine && sequence_ == first)))) -
           1;
  }

  // The operation in `lane`'s slot, whose ready word that lane has seen.
  __device__ __forceinline__ void submit(uint32_t lane, uint64_t seen) {
    uint32_t announced = 0;
    if (lane_ == lane && announced_) {
      announced = role_ == apk::PipelineRole::kResident ? p_.limits.clusters
                                                        : offer(static_cast<uint32_t>(seen >> 32));
    }
    const apk::Phase phase =
        static_cast<apk::Phase>(__shfl_sync(kAllLanes, static_cast<uint32_t>(phase_), lane));
    const uint32_t slot_index = __shfl_sync(kAllLanes, slot_, lane);
    const uint32_t epoch = __shfl_sync(kAllLanes, static_cast<uint32_t>(seen >> 32), lane);
    const uint32_t layer = __shfl_sync(kAllLanes, static_cast<uint32_t>(seen), lane) - 1;
    const apk::SlotView slot = view(phase, slot_index);
    announced = __shfl_sync(kAllLanes, announced, lane);
    if (lane_ == lane) {
      // Those that came and went unseen count too.
      Memory::count(&shared()->submitted[apk::phase_index(phase)],
                    submitted_ == 0 ? 1 : epoch - submitted_);
      in_flight_ = true;
      submitted_ = epoch;
      sequence_ = next_sequence_;
      started_ns_ = ptx::global_time_ns();
    }
    ++next_sequence_;
    ApkSlot& box = mailbox(phase, slot_index);
    // Of the ready word: the request's owner. And of the slot: its last readers are through.
    Memory::load(&box.ready, apk::Acquire{}, apk::SystemScope{});
    Memory::load(&slot.words->finished, apk::Acquire{}, apk::DeviceScope{});
    const uint32_t blocks = instantiate(slot, box, epoch, layer);
    if (blocks == kIsOver) {
      if (lane_ == lane) in_flight_ = false;
      return;
    }
    if (blocks == kBadCounts || blocks > slot.shape->max_row_blocks || layer >= p_.layers) {
      refuse(phase, slot_index, epoch, blocks);
      return;
    }
    publish(lane, slot, box, {epoch, layer, 0, 0, blocks, 0, 0, 0}, announced);
  }

  // The lane of the operation's slot: offers the next one, and says for how many clusters this one
  // was. Always what decode gets beside a prefill: one may have begun by then.
  __device__ __forceinline__ uint32_t offer(uint32_t epoch) {
    uint32_t clusters = 0;
    if (policy_.preemption_enabled) {
      const apk::Budget& budget = policy_.budget;
      // That of the slot's last operation, or what is expected of any.
      const uint32_t footprint =
          submitted_ != 0 ? row_blocks_ : apk::ceil_div(budget.expected_footprint_milli, 1000u);
      clusters = apk::contended_decode_clusters(budget, footprint, p_.limits.clusters);
    }
    offer_ = apk::next_offer(offer_, epoch, clusters);
    Memory::store(&mailbox(phase_, slot_).offer, offer_, apk::Relaxed{}, apk::DeviceScope{});
    return apk::offered_clusters(offer_, epoch);
  }

  // What apk::instantiate_operation writes for the row blocks, lanes side by side; their number, or
  // kIsOver: counts of a later operation have come, so all tiles of this one were announced and it
  // finished before it was seen here.
  static constexpr uint32_t kBadCounts = ~0u, kIsOver = ~1u;
  __device__ __forceinline__ uint32_t instantiate(const apk::SlotView& slot, const ApkSlot& box,
                                                  uint32_t epoch, uint32_t layer) {
    const uint32_t experts = slot.shape->experts;
    uint32_t row_blocks = 0, rows = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < experts; first += 32) {
      const uint32_t fault = load_rows(slot, box, epoch, first, &rows);
      if (fault != 0) return fault;
      row_blocks += __reduce_add_sync(kAllLanes, apk::ceil_div(rows, slot.shape->gate_up.rows));
      if (row_blocks > slot.shape->max_row_blocks) return row_blocks;
    }
    uint32_t blocks_before = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < experts; first += 32) {
      if (experts > 32) {
        const uint32_t fault = load_rows(slot, box, epoch, first, &rows);
        if (fault != 0) return fault;
      }
      const uint32_t blocks = apk::ceil_div(rows, slot.shape->gate_up.rows);
      uint32_t end = blocks;
      for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(kAllLanes, end, step);
        if (lane_ >= step) end += before;
      }
      const uint32_t first_block = blocks_before + end - blocks;
      blocks_before += __shfl_sync(kAllLanes, end, 31);
      const apk::RowBlock block{{rows, first_block},
                                row_blocks,
                                static_cast<uint16_t>(first + lane_),
                                static_cast<uint16_t>(layer)};
#pragma unroll 1
      for (uint32_t b = 0; b < blocks; ++b) slot.blocks[row_blocks - 1 - first_block - b] = block;
    }
    return row_blocks;
  }

  // The rows of experts first .. first + 31, a lane each. 0, kBadCounts or kIsOver.
  __device__ __forceinline__ uint32_t load_rows(const apk::SlotView& slot, const ApkSlot& box,
                                                uint32_t epoch, uint32_t first,
                                                uint32_t* rows) const {
    const uint32_t expert = first + lane_;
    const uint64_t word =
        expert < slot.shape->experts
            ? Memory::load(&box.rows_per_expert[expert], apk::Relaxed{}, apk::DeviceScope{})
            : uint64_t{epoch} << 32;
    const uint32_t of = static_cast<uint32_t>(word >> 32);
    *rows = static_cast<uint32_t>(word);
    if (slot.shape->announced && __any_sync(kAllLanes, apk::is_earlier(epoch, of))) return kIsOver;
    return __any_sync(kAllLanes, of != epoch) ? kBadCounts : 0;
  }

  // Fields, claim words, then the window. `f` has what the counts say.
  __device__ __forceinline__ void publish(uint32_t lane, const apk::SlotView& slot,
                                          const ApkSlot& box, apk::OperationFields f,
                                          uint32_t announced) {
    const apk::OperationTemplate& shape = *slot.shape;
    f.participant_mask = box.request.participant_mask;
    f.tokens = shape.reduce_tokens > 0 ? box.request.tokens : 0;
    f.gate_up_tiles = f.row_blocks * shape.gate_up_columns();
    f.down_tiles = f.row_blocks * shape.down_columns();
    f.reduce_tiles = shape.reduce_tokens > 0 ? apk::ceil_div(f.tokens, shape.reduce_tokens) : 0;
    const bool empty = f.tiles() == 0;
    __syncwarp();
    if (lane_ == 0) {
      *slot.fields = f;
      if (empty) {
        Memory::count(&shared()->retired[apk::phase_index(shape.phase)], 1);
        Memory::store(&slot.words->finished, f.epoch, apk::Relaxed{}, apk::DeviceScope{});
        Memory::store(&p_.done[apk_slot_index(p_.limits, shape.phase, shape.slot)].value,
                      apk::pack_epoch_value(f.epoch, 1), apk::Release{}, apk::SystemScope{});
      } else {
        apk::publish_operation<Memory>(slot, announced);
      }
    }
    if (lane_ == lane) {
      in_flight_ = !empty;
      unclaimed_ = !empty && f.gate_up_tiles > announced;
      row_blocks_ = f.row_blocks;
    }
    if (!empty) refresh_windows();
  }

  __device__ __forceinline__ void refuse(apk::Phase phase, uint32_t slot, uint32_t epoch,
                                         uint32_t blocks) {
    if (lane_ != 0) return;
    report(ApkFault::kBadRequest, phase, slot, epoch,
           static_cast<uint32_t>(blocks == kBadCounts ? apk::OperationFault::kBadEpoch
                                                      : apk::OperationFault::kTooManyRowBlocks),
           0);
  }

  // One lane.
  __device__ __forceinline__ void report(ApkFault fault, apk::Phase phase, uint32_t slot,
                                         uint32_t epoch, uint32_t detail, uint32_t expected) {
    p_.report->phase = phase;
    p_.report->slot = slot;
    p_.report->epoch = epoch;
    p_.report->detail = detail;
    p_.report->expected = expected;
    Memory::store(reinterpret_cast<uint32_t*>(&p_.report->fault), static_cast<uint32_t>(fault),
                  apk::Release{}, apk::SystemScope{});
    Memory::store(&shared()->abort_word, 2u, apk::Relaxed{}, apk::SystemScope{});
  }

  __device__ __forceinline__ void slow_look() {
    read_policy();
    abort_ = __any_sync(
        kAllLanes, Memory::load(&shared()->abort_word, apk::Relaxed{}, apk::SystemScope{}) != 0);
    const uint32_t stop = Memory::load(p_.stop_word, apk::Relaxed{}, apk::SystemScope{});
    const bool idle = !__any_sync(kAllLanes, in_flight_);
    if (lane_ == 0 && (stop == 2 || (stop == 1 && idle))) {
      Memory::store(&shared()->abort_word, 1u, apk::Relaxed{}, apk::SystemScope{});
    }
    const bool late = in_flight_ && ptx::global_time_ns() - started_ns_ > p_.operation_limit_ns;
    const uint32_t lanes = __ballot_sync(kAllLanes, late);
    if (lanes == 0 || lane_ + 1 != static_cast<uint32_t>(__ffs(static_cast<int>(lanes)))) return;
    const apk::SlotView slot = view(phase_, slot_);
    report(ApkFault::kTimeout, phase_, slot_, submitted_,
           Memory::load(&slot.words->down_committed, apk::Relaxed{}, apk::DeviceScope{}),
           slot.fields->gate_up_tiles);
  }

  // False: aborted, and every cluster has been told.
  __device__ __forceinline__ bool decide() {
    using Role = apk::AgentRole<Memory>;
    Role agent(p_.limits, p_.scheduler, false);
    const Role::PhaseLook prefill = phase_look(apk::Phase::kPrefill);
    const Role::PhaseLook decode = phase_look(apk::Phase::kDecode);
    apk::SharingPlan plan = agent.make_plan(policy_, prefill, decode, abort_);
    // Always: an idle resident pipeline costs one look at the ready window, and an operation need
    // not wait for the decision to be told.
    plan.decode_side.resident = plan.prefill_side.resident = true;
    const uint32_t decode_side = apk::pack_decision(plan.decode_side);
    const uint32_t prefill_side = apk::pack_decision(plan.prefill_side);
    const bool changed = !told_ || decode_side != decode_side_ || prefill_side != prefill_side_ ||
                         plan.decode_clusters != decode_clusters_;
    if (!changed) return true;
    decode_side_ = decode_side;
    prefill_side_ = prefill_side;
    decode_clusters_ = plan.decode_clusters;
    told_ = true;
#pragma unroll 1
    for (uint32_t c = lane_; c < p_.limits.clusters; c += 32) agent.write_decision(plan, c);
    __syncwarp();
    return !plan.prefill_side.abort;
  }

  __device__ __forceinline__ apk::AgentRole<apk::DeviceMemory>::PhaseLook phase_look(
      apk::Phase phase) const {
    const bool mine = unclaimed_ && phase_ == phase;
    const uint32_t main = __ballot_sync(kAllLanes, mine && role_ == apk::PipelineRole::kMain);
    apk::AgentRole<apk::DeviceMemory>::PhaseLook look;
    look.main = main != 0;
    look.resident = __any_sync(kAllLanes, mine && role_ == apk::PipelineRole::kResident);
    if (look.main) look.footprint = __shfl_sync(kAllLanes, row_blocks_, oldest_of(main));
    return look;
  }

  __device__ __forceinline__ void read_policy() {
    static_assert(sizeof(apk::SharingPolicy) % 4 == 0);
    const auto* from = reinterpret_cast<const uint32_t*>(p_.policy);
    auto* to = reinterpret_cast<uint32_t*>(&policy_);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(apk::SharingPolicy) / 4; ++i) to[i] = __ldcg(from + i);
  }

  const ApkParameters& p_;
  const apk::StorageLayout layout_;
  Committer& committer_;
  const uint32_t lane_;
  // This lane's slot.
  bool valid_ = false;
  apk::Phase phase_;
  uint32_t slot_;
  apk::PipelineRole role_;
  bool announced_ = false;  // its template wants it
  const uint64_t* ready_word_;
  bool in_flight_ = false, unclaimed_ = false;
  uint32_t submitted_ = 0;  // epoch of its latest operation
  uint32_t sequence_ = 0;   // its place among all operations
  uint32_t row_blocks_ = 0;
  uint64_t offer_ = 0;  // the slot's offer word
  uint64_t started_ns_ = 0;
  // The same in all lanes.
  uint32_t next_sequence_ = 1;
  uint64_t prefill_window_ = 0, decode_window_ = 0;
  apk::SharingPolicy policy_;
  bool busy_ = false;  // something is in flight
  bool abort_ = false;
  bool told_ = false;
  uint32_t decode_side_ = 0, prefill_side_ = 0, decode_clusters_ = 0;
};

}  // namespace expertplex::cuda
