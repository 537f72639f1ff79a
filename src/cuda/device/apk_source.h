// Tile source of the adaptive persistent kernel: every CTA's scheduler warp claims tiles of both
// pipelines from the scheduling core (src/apk), and one warp of CTA 0 is the deciding agent.
//
// A CTA is a cluster. Its scheduler warp is the only one that looks at shared words of the
// scheduler; producers and math warps follow its queues and the stamps, so no two roles can
// disagree.
#pragma once

#include "apk/device_memory.h"
#include "apk/scheduler.h"
#include "cuda/device/apk_state.h"
#include "cuda/device/work_queue.h"
#include "cuda/ptx/fences.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

using DeviceScheduler = apk::TileScheduler<apk::DeviceMemory>;

// The deciding agent: one warp of CTA 0. Its lanes look at the ready words and write the preempt
// words side by side (131 words one after the other took 65 us); lane 0 alone submits and decides.
class ApkAgent {
 public:
  using Role = apk::AgentRole<apk::DeviceMemory>;

  __device__ __forceinline__ explicit ApkAgent(const ApkParameters& parameters)
      : p_(parameters),
        scheduler_(parameters.limits, parameters.scheduler),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    // Nobody else takes the role on a GPU; the other lanes only write what lane 0 has decided.
    Role agent(p_.limits, p_.scheduler, false);
    bool idle = false;  // nothing in flight: only ready words can change that
    for (uint32_t round = 0;; ++round) {
      const bool submitted = submit_ready(agent);
      if (idle && !submitted && round % kIdleRounds != 0) continue;
      if (lane_ == 0) look_at_stop_word();
      if (!decide(agent)) return;
      idle = !__any_sync(0xffffffff, scheduler_.has_operations());
    }
  }

 private:
  __device__ __forceinline__ uint32_t slot_count() const {
    return p_.limits.slots[0] + p_.limits.slots[1];
  }
  // Decode first: it is what waits.
  __device__ __forceinline__ apk::Phase phase_of(uint32_t index) const {
    return index < p_.limits.slots[1] ? apk::Phase::kDecode : apk::Phase::kPrefill;
  }
  __device__ __forceinline__ uint32_t slot_of(uint32_t index) const {
    return index < p_.limits.slots[1] ? index : index - p_.limits.slots[1];
  }
  __device__ __forceinline__ ApkSlot& mailbox(uint32_t index) const {
    return p_.slots[apk_slot_index(p_.limits, phase_of(index), slot_of(index))];
  }

  // Rounds of an idle agent between two looks at stop word and policy.
  static constexpr uint32_t kIdleRounds = 16;

  // Submits every operation whose ready word holds an epoch that its slot has not run. True: there
  // was one.
  __device__ __forceinline__ bool submit_ready(Role& agent) {
    bool any = false;
    for (uint32_t first = 0; first < slot_count(); first += 32) {
      const uint32_t index = first + lane_;
      bool ready = false;
      if (index < slot_count()) {
        const uint64_t word = apk::DeviceMemory::load(&mailbox(index).ready.value, apk::Relaxed{},
                                                      apk::SystemScope{});
        const uint32_t epoch = static_cast<uint32_t>(word >> 32);
        ready = epoch != 0 && epoch != agent.last_epoch(phase_of(index), slot_of(index));
      }
      for (uint32_t rest = __ballot_sync(0xffffffff, ready); rest != 0; rest &= rest - 1) {
        any = true;
        if (lane_ == 0) submit(agent, first + static_cast<uint32_t>(__ffs(rest)) - 1);
      }
      __syncwarp();
    }
    return any;
  }

  __device__ __forceinline__ void submit(Role& agent, uint32_t index) {
    const apk::Phase phase = phase_of(index);
    const uint32_t slot = slot_of(index);
    ApkSlot& box = mailbox(index);
    const uint64_t word =
        apk::DeviceMemory::load(&box.ready.value, apk::Acquire{}, apk::SystemScope{});
    apk::OperationRequest request;
    request.epoch = static_cast<uint32_t>(word >> 32);
    request.layer = box.request.layer;
    request.participant_mask = box.request.participant_mask;
    request.tokens = box.request.tokens;
    request.rows_per_expert = box.rows_per_expert;
    switch (agent.submit(phase, slot, request)) {
      case apk::SubmitResult::kSubmitted:
      case apk::SubmitResult::kBusy:
        return;
      case apk::SubmitResult::kEmpty:
        apk::DeviceMemory::store(&p_.done[apk_slot_index(p_.limits, phase, slot)].value,
                                 apk::pack_epoch_value(request.epoch, 1), apk::Release{},
                                 apk::SystemScope{});
        return;
      case apk::SubmitResult::kFault:
        break;
    }
    p_.report->phase = phase;
    p_.report->slot = slot;
    p_.report->epoch = request.epoch;
    p_.report->detail = static_cast<uint32_t>(agent.fault());
    p_.report->fault = ApkFault::kBadRequest;
    scheduler_.abort(2);
  }

  __device__ __forceinline__ void look_at_stop_word() {
    const uint32_t stop = apk::DeviceMemory::load(p_.stop_word, apk::Relaxed{}, apk::SystemScope{});
    if (stop == 2 || (stop == 1 && !scheduler_.has_operations())) scheduler_.abort(1);
  }

  // False: aborted, and every cluster has been told.
  __device__ __forceinline__ bool decide(Role& agent) {
    uint32_t decode_clusters = 0, decode_side = 0, prefill_side = 0;
    bool changed = false;
    if (lane_ == 0) {
      const Role::PhaseLook prefill = agent.look_at(apk::Phase::kPrefill);
      const Role::PhaseLook decode = agent.look_at(apk::Phase::kDecode);
      apk::SharingPlan plan = agent.make_plan(*p_.policy, prefill, decode);
      // Always: an idle resident pipeline costs one look at the ready window, and an operation need
      // not wait for the decision to be told.
      plan.decode_side.resident = plan.prefill_side.resident = true;
      changed = agent.plan_changed(plan);
      decode_clusters = plan.decode_clusters;
      decode_side = apk::pack_decision(plan.decode_side);
      prefill_side = apk::pack_decision(plan.prefill_side);
    }
    if (!__any_sync(0xffffffff, changed)) return true;
    apk::SharingPlan plan;
    plan.decode_clusters = __shfl_sync(0xffffffff, decode_clusters, 0);
    plan.decode_side = apk::unpack_decision(__shfl_sync(0xffffffff, decode_side, 0));
    plan.prefill_side = apk::unpack_decision(__shfl_sync(0xffffffff, prefill_side, 0));
    for (uint32_t c = lane_; c < p_.limits.clusters; c += 32) agent.write_decision(plan, c);
    return !plan.prefill_side.abort;
  }

  const ApkParameters& p_;
  DeviceScheduler scheduler_;
  uint32_t lane_;
};

class ApkSource {
 public:
  using Parameters = ApkParameters;

  // Math warps, one thread, when a tile's output (or its half) is written.
  class Commit {
   public:
    __device__ __forceinline__ explicit Commit(const Parameters& parameters)
        : parameters_(parameters) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor& tile) const {
      DeviceScheduler scheduler(parameters_.limits, parameters_.scheduler);
      if (!scheduler.commit(tile)) return;
      scheduler.retire(tile);
      const uint32_t slot = apk_slot_index(parameters_.limits, tile.phase, tile.slot);
      apk::DeviceMemory::store(&parameters_.done[slot].value, apk::pack_epoch_value(tile.epoch, 1),
                               apk::Release{}, apk::SystemScope{});
    }

   private:
    const Parameters& parameters_;
  };

  // The spare warp of CTA 0, all lanes.
  static __device__ __forceinline__ void run_agent(const Parameters& parameters) {
    ApkAgent(parameters).run();
  }

  // The scheduler warp of a CTA, one thread. Never blocks on one pipeline while the other has work.
  template <GemmConfig kConfig>
  static __device__ __forceinline__ void run(const Parameters& parameters,
                                             SharedLayout<kConfig>* shared) {
    DeviceScheduler scheduler(parameters.limits, parameters.scheduler);
    WorkQueue<kConfig, Pipeline::kMain> main_queue(shared);
    WorkQueue<kConfig, Pipeline::kResident> resident_queue(shared);
    apk::PipelineState main_pipeline, resident_pipeline;
    main_pipeline.cluster = resident_pipeline.cluster = blockIdx.x;
    resident_pipeline.role = apk::PipelineRole::kResident;
    bool more = true;
    while (more) {
      shared->pause = static_cast<uint32_t>(scheduler.pause(blockIdx.x));
      bool found = false;
      if (resident_queue.has_room()) {
        more &= claim(parameters, scheduler, resident_pipeline, resident_queue, &found);
      }
      if (main_queue.has_room()) {
        more &= claim(parameters, scheduler, main_pipeline, main_queue, &found);
      }
      if (!found) __nanosleep(kIdleNanoseconds);
    }
    // A producer that a pause holds back in mid-tile would never come to the end of its work.
    shared->pause = static_cast<uint32_t>(apk::PausePolicy::kNever);
    main_queue.wait_for_room();
    main_queue.push_end();
    resident_queue.wait_for_room();
    resident_queue.push_end();
  }

 private:
  static constexpr uint32_t kIdleNanoseconds = 32;

  // False: leave.
  template <typename Queue>
  static __device__ __forceinline__ bool claim(const Parameters& parameters,
                                               DeviceScheduler& scheduler,
                                               apk::PipelineState& pipeline, Queue& queue,
                                               bool* found) {
    const apk::Claim claim = scheduler.next(pipeline);
    if (claim.status == apk::ClaimStatus::kAbort) return false;
    if (claim.status != apk::ClaimStatus::kTile) return true;
    // The claim acquired what the ready word released, in the generic proxy; TMA reads it next.
    ptx::fence_proxy_async();
    const uint32_t slot = apk_slot_index(parameters.limits, claim.tile.phase, claim.tile.slot);
    queue.push(&parameters.bindings[slot * parameters.layers + claim.tile.layer], claim.tile);
    *found = true;
    return true;
  }
};

}  // namespace expertplex::cuda
