// What host, senders and the adaptive persistent kernel share in memory.
//
// Words, of the form {epoch:32, value:32} but for the last:
//   ready_word   one per (phase, slot), device memory; value = layer + 1. Writer: whoever sends the
//                operation (the host by a copy, another stream, a peer GPU), release, system scope,
//                after counts, request and rows are written. Readers: the deciding agent and, of
//                announced operations, the resident producer of every CTA (apk_inbox.h), relaxed
//                while they poll, acquire before the agent reads the request and before a CTA loads
//                rows. Becomes visible: request and rows.
//   offer_word   one per decode slot (apk/announcement.h), beside the ready word: both come with
//                one load of 16 bytes. Senders leave it alone.
//   row counts   one per (phase, slot, expert); value = rows. Writer: the sender, relaxed, before
//                the ready word. Readers: the same, relaxed: each carries its epoch, so it says
//                itself whether it is the operation's.
//   done_word    one per (phase, slot), device memory (or host memory, in tests); value = 1.
//                Writer: the committer whose commit finished the operation, or the agent for an
//                operation without rows, release, system scope. Reader: the sender, acquire. Visible:
//                the operation's output; from then on the slot may be sent to again.
//   stop_word    device memory, 32 bits. Writer: the host, by a copy; reader: the agent, relaxed.
//                1: leave when nothing is in flight; 2: claim nothing more and leave when tiles
//                under way are finished. Orders nothing. Not in host memory: the agent's every look
//                at it would cross PCIe.
#pragma once

#include <cstdint>

#include "apk/policy.h"
#include "apk/scheduler_storage.h"
#include "cuda/device/tile_work.h"

namespace expertplex::cuda {

struct alignas(128) ApkWord {
  uint64_t value = 0;
};

// What a sender writes before its ready word, beside the counts.
struct ApkRequest {
  uint32_t participant_mask = 0;
  uint32_t tokens = 0;
};

constexpr uint32_t kApkMaxExperts = 256;
constexpr uint32_t kApkMaxSlots = 32;  // of both phases: the agent keeps one per lane
// Decode slots below this may be announced (apk/announcement.h); those of others are claimed.
constexpr uint32_t kApkInboxSlots = 4;

// One operation slot as its sender sees it.
struct alignas(128) ApkSlot {
  uint64_t ready = 0;
  uint64_t offer = 0;
  uint64_t rows_per_expert[kApkMaxExperts] = {};  // row counts
  ApkRequest request;
};

// Why the kernel left before it was told to.
enum class ApkFault : uint32_t {
  kNone = 0,
  kBadRequest = 1,  // detail: OperationFault
  kTimeout = 2,     // an operation was not done in time; detail: tiles committed
};

// A role that was still waiting when the kernel was made to leave.
struct ApkLeftWaiting {
  uint32_t cta = 0, warp = 0;
  uint32_t barrier = 0;  // bytes from the start of SharedLayout
  uint32_t parity = 0;   // expected; the barrier's phase had not completed
};
constexpr uint32_t kApkMostLeft = 64;

// Host-visible. Written once, by who first sees a fault; `left` when the CTAs leave.
struct ApkReport {
  ApkFault fault = ApkFault::kNone;
  apk::Phase phase = apk::Phase::kPrefill;
  uint32_t slot = 0;
  uint32_t epoch = 0;
  uint32_t detail = 0;
  uint32_t expected = 0;  // kTimeout: tiles of the operation
  uint32_t left_count = 0;
  ApkLeftWaiting left[kApkMostLeft];
};

// What a trace event tells of a tile.
enum class ApkTraceKind : uint32_t {
  kMainLoads = 0,  // a pipeline's producer has issued its first loads
  kResidentLoads = 1,
  kCommits = 2,  // the committer has seen that its output is written
};
constexpr uint32_t kApkTraceKinds = 3;

struct ApkTraceEvent {
  uint64_t time_ns = 0;  // global timer; 0: no event
  uint32_t epoch = 0;
  apk::Phase phase = apk::Phase::kPrefill;
  uint8_t slot = 0;
  uint16_t first_k = 0;  // k tile with which the loads began; not 0: of a tile that was put by
};

struct ApkParameters {
  apk::SchedulerLimits limits;
  void* scheduler = nullptr;              // apk storage
  const GemmBinding* bindings = nullptr;  // [phase][slot][layers]
  uint32_t layers = 1;
  ApkSlot* slots = nullptr;                    // [prefill slots + decode slots]
  ApkWord* done = nullptr;                     // the same order
  const apk::SharingPolicy* policy = nullptr;  // read by the agent now and then
  uint32_t* stop_word = nullptr;
  ApkReport* report = nullptr;
  uint32_t* left_count = nullptr;  // device memory: entries of ApkReport::left
  float4* parking = nullptr;       // [clusters][kParkedVectors]
  // An operation that takes longer is reported, and the kernel leaves.
  uint64_t operation_limit_ns = 0;
  ApkTraceEvent* trace = nullptr;  // [clusters][kinds][trace_capacity]; null: off
  uint32_t trace_capacity = 0;
};

EXPERTPLEX_HOST_DEVICE constexpr uint32_t apk_slot_index(const apk::SchedulerLimits& limits,
                                                         apk::Phase phase, uint32_t slot) {
  return phase == apk::Phase::kPrefill ? slot : limits.slots[0] + slot;
}

}  // namespace expertplex::cuda
