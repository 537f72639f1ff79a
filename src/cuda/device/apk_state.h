// What host, senders and the adaptive persistent kernel share in memory.
//
// Words, of the form {epoch:32, value:32} but for the last, each on a line of its own:
//   ready_word   one per (phase, slot), device memory. Writer: whoever sends the operation (the
//                host by a copy, another stream, a peer GPU), release, system scope, after
//                request and rows are written. Reader: the deciding agent, relaxed
//                while it polls, acquire once before it reads the request. Becomes visible: the
//                slot's request and, through the claims that follow, the rows.
//   done_word    one per (phase, slot), device memory (or host memory, in tests). Writer: the math
//                thread whose commit finished the operation, or the agent for an operation without
//                rows, release, system scope. Reader: the sender, acquire.
//                Becomes visible: the operation's output; from then on the slot may be sent to
//                again.
//   stop_word    device memory, 32 bits. Writer: the host, by a copy; reader: the agent, relaxed.
//                1: leave when nothing is in flight; 2: claim nothing more and leave when tiles
//                under way are finished. Orders nothing. Not in host memory: the
//                agent's every look at it would cross PCIe.
#pragma once

#include <cstdint>

#include "apk/policy.h"
#include "apk/scheduler_storage.h"
#include "cuda/device/tile_work.h"

namespace expertplex::cuda {

struct alignas(128) ApkWord {
  uint64_t value = 0;
};

// What a sender writes before its ready word. The counts lie in rows_per_expert.
struct ApkRequest {
  uint32_t layer = 0;
  uint32_t participant_mask = 0;
  uint32_t tokens = 0;
  uint32_t reserved = 0;
};

constexpr uint32_t kApkMaxExperts = 256;

// One operation slot as its sender sees it.
struct alignas(128) ApkSlot {
  ApkWord ready;
  ApkRequest request;
  uint32_t rows_per_expert[kApkMaxExperts] = {};
};

// Why the kernel left before it was told to; host-visible. Written once, by who first sees a fault.
enum class ApkFault : uint32_t { kNone = 0, kBadRequest = 1 };

struct ApkReport {
  ApkFault fault = ApkFault::kNone;
  apk::Phase phase = apk::Phase::kPrefill;
  uint32_t slot = 0;
  uint32_t epoch = 0;
  uint32_t detail = 0;  // OperationFault
};

struct ApkParameters {
  apk::SchedulerLimits limits;
  void* scheduler = nullptr;              // apk storage
  const GemmBinding* bindings = nullptr;  // [phase][slot][layers]
  uint32_t layers = 1;
  ApkSlot* slots = nullptr;                    // [prefill slots + decode slots]
  ApkWord* done = nullptr;                     // the same order
  const apk::SharingPolicy* policy = nullptr;  // read by the agent at every decision
  uint32_t* stop_word = nullptr;
  ApkReport* report = nullptr;
};

EXPERTPLEX_HOST_DEVICE constexpr uint32_t apk_slot_index(const apk::SchedulerLimits& limits,
                                                         apk::Phase phase, uint32_t slot) {
  return phase == apk::Phase::kPrefill ? slot : limits.slots[0] + slot;
}

}  // namespace expertplex::cuda
