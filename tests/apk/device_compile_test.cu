// Compiles the scheduling core for the device: agent, claims, commits, handoff and parking as warp
// roles of a kernel would use them. Nothing runs; what is tested is that it compiles without
// warnings and how many registers each role needs (the build prints them).
#include "apk/device_memory.h"
#include "apk/handoff.h"
#include "apk/preemption_bound.h"
#include "apk/scheduler.h"

namespace expertplex::apk {

constexpr uint32_t kDepth = 4;
using Ring = HandoffRing<kDepth>;

// The spare warp of CTA 0: one round per ready operation.
__global__ void deciding_agent(SchedulerLimits limits, void* base, OperationRequest request,
                               SharingPolicy policy, uint32_t rounds, uint32_t* result) {
  TileScheduler<DeviceMemory> scheduler(limits, base);
  AgentRole<DeviceMemory> agent = scheduler.try_become_agent();
  if (!agent) return;
  for (uint32_t i = 0; i < rounds; ++i) {
    *result = static_cast<uint32_t>(agent.submit(Phase::kDecode, 0, request));
    agent.decide(policy);
  }
}

// The claiming warp of a cluster's leader, with k-block checks.
__global__ void pipeline_leader(SchedulerLimits limits, void* base, Ring* ring, uint32_t* taken,
                                uint32_t k_blocks, uint32_t rounds) {
  TileScheduler<DeviceMemory> scheduler(limits, base);
  HandoffSender<DeviceMemory, kDepth> sender(&ring, 1, taken, 1);
  PipelineState pipeline;
  pipeline.cluster = blockIdx.x;
  for (uint32_t i = 0; i < rounds; ++i) {
    Claim claim = scheduler.next(pipeline);
    if (claim.status == ClaimStatus::kAbort) return;
    if (claim.status == ClaimStatus::kNothing) continue;
    for (uint32_t limit = 0; limit < 1000 && !sender.try_send(claim); ++limit) {
    }
    for (uint32_t k = 0; k < k_blocks; k += 4) {
      const Claim verdict = scheduler.preempt(pipeline, claim.tile);
      for (uint32_t limit = 0; limit < 1000 && !sender.try_send(verdict); ++limit) {
      }
    }
  }
}

// A member: receives, would compute, commits.
__global__ void pipeline_member(SchedulerLimits limits, void* base, Ring* ring, uint32_t* taken,
                                uint32_t rounds, uint64_t* done_word) {
  TileScheduler<DeviceMemory> scheduler(limits, base);
  HandoffReceiver<DeviceMemory, kDepth> receiver(ring, taken);
  for (uint32_t i = 0; i < rounds; ++i) {
    Claim claim;
    if (!receiver.try_receive(&claim) || claim.status != ClaimStatus::kTile) continue;
    if (!scheduler.commit(claim.tile)) continue;
    const uint64_t done = pack_epoch_value(claim.tile.epoch, 1);
    scheduler.retire(claim.tile);
    DeviceMemory::store(done_word, done, Release{}, SystemScope{});
  }
}

// A prefill producer, before each k-block.
__global__ void prefill_producer(SchedulerLimits limits, void* base, uint32_t* in_flight) {
  const TileScheduler<DeviceMemory> scheduler(limits, base);
  *in_flight = loads_in_flight(scheduler.pause(blockIdx.x), kDepth);
}

}  // namespace expertplex::apk
