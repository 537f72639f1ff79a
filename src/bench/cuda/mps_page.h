// What the two MPS clients and their parent share: a page of memory, mapped by all three.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "bench/cuda/apk_workload.h"

namespace expertplex::bench {

constexpr int kMpsMostPrefills = 64;
constexpr int kMpsMostDecodes = 64;  // beside one prefill
enum MpsKind : uint32_t { kMpsOne, kMpsOften, kMpsKinds };

struct MpsPage {
  // Written by the parent before the clients start.
  GemmName shape;
  char model[32] = {}, gemm[32] = {};  // what shape's names point to in each process
  uint32_t decode_rows = 0;
  int32_t prefills = 0;
  double first_us = 0, every_us[kMpsKinds] = {0, 0};

  // Rounds, counted from 1. decode_at: writer decode, "waits for this round's prefill". prefill_at
  // and start_ns: writer prefill, "launched now"; start_ns before, released by prefill_at.
  // prefill_done: writer prefill, "this round's prefill is over". failed: writer either, 1: leave.
  std::atomic<uint32_t> decode_at, prefill_at, prefill_done, failed;
  std::atomic<int64_t> start_ns;

  // Results; read by the parent when the clients have left.
  double prefill_us[kMpsKinds][kMpsMostPrefills] = {};
  double decode_us[kMpsKinds][kMpsMostPrefills * kMpsMostDecodes] = {};
  uint32_t decodes[kMpsKinds] = {0, 0};
  double saturated_prefill_us = 0, saturated_decode_us = 0;
  char error[2][256] = {};  // prefill's, decode's
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr Nanoseconds kMpsWaitLimit = 60 * kSecond;

// Until the word has reached `round`. `who` waits for what, in the error.
Result<void> wait_for_round(const MpsPage& page, const std::atomic<uint32_t>& word, uint32_t round,
                            const char* who);

}  // namespace expertplex::bench
