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

// The deciding agent, one thread of CTA 0: submits what is ready, decides, keeps limits.
class ApkAgent {
 public:
  __device__ __forceinline__ explicit ApkAgent(const ApkParameters& parameters)
      : p_(parameters), scheduler_(parameters.limits, parameters.scheduler) {}

  __device__ __forceinline__ void run() {
    apk::AgentRole<apk::DeviceMemory> agent = scheduler_.try_become_agent();
    if (!agent) return;
    for (;;) {
      for (uint32_t s = 0; s < p_.limits.slots[1]; ++s) look(agent, apk::Phase::kDecode, s);
      for (uint32_t s = 0; s < p_.limits.slots[0]; ++s) look(agent, apk::Phase::kPrefill, s);
      const uint32_t stop =
          apk::DeviceMemory::load(p_.stop_word, apk::Relaxed{}, apk::SystemScope{});
      if (stop == 2 || (stop == 1 && !scheduler_.has_operations())) scheduler_.abort(1);
      agent.decide(*p_.policy);
      if (scheduler_.abort_reason() != 0) return;  // decide() has told every cluster
    }
  }

 private:
  // Submits the slot's operation if its ready word holds an epoch that the slot has not run.
  __device__ __forceinline__ void look(apk::AgentRole<apk::DeviceMemory>& agent, apk::Phase phase,
                                       uint32_t slot) {
    ApkSlot& mailbox = p_.slots[apk_slot_index(p_.limits, phase, slot)];
    uint64_t word =
        apk::DeviceMemory::load(&mailbox.ready.value, apk::Relaxed{}, apk::SystemScope{});
    const uint32_t epoch = static_cast<uint32_t>(word >> 32);
    if (epoch == 0 || epoch == agent.last_epoch(phase, slot)) return;
    word = apk::DeviceMemory::load(&mailbox.ready.value, apk::Acquire{}, apk::SystemScope{});
    apk::OperationRequest request;
    request.epoch = epoch;
    request.layer = mailbox.request.layer;
    request.participant_mask = mailbox.request.participant_mask;
    request.tokens = mailbox.request.tokens;
    request.rows_per_expert = mailbox.rows_per_expert;
    switch (agent.submit(phase, slot, request)) {
      case apk::SubmitResult::kSubmitted:
      case apk::SubmitResult::kBusy:
        return;
      case apk::SubmitResult::kEmpty:
        apk::DeviceMemory::store(&p_.done[apk_slot_index(p_.limits, phase, slot)].value,
                                 apk::pack_epoch_value(epoch, 1), apk::Release{},
                                 apk::SystemScope{});
        return;
      case apk::SubmitResult::kFault:
        break;
    }
    p_.report->phase = phase;
    p_.report->slot = slot;
    p_.report->epoch = epoch;
    p_.report->detail = static_cast<uint32_t>(agent.fault());
    p_.report->fault = ApkFault::kBadRequest;
    scheduler_.abort(2);
  }

  const ApkParameters& p_;
  DeviceScheduler scheduler_;
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

  // The spare warp of CTA 0, one thread.
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
