// MemoryPlan: every buffer of the engine with its size, worked out before anything is allocated, so
// that a configuration that does not fit is refused with the arithmetic shown. Bytes throughout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "serving/engine.h"
#include "transport/kv_handoff.h"
#include "transport/moe_buffers.h"

namespace expertplex {

struct MemoryPlan {
  int max_model_len = 0;
  int max_prefill_tokens = 0;
  KvCacheShape prefill_cache, decode_cache;  // per server
  transport::KvWindowLayout prefill_window, decode_window;
  transport::MoeBufferConfig moe_buffers;
  std::vector<int64_t> moe_window_bytes;  // per MoE server
  int64_t kv_bytes = 0;                   // of all attention servers' windows
  int64_t moe_bytes = 0;                  // of all MoE servers' windows
  int64_t total_bytes() const { return kv_bytes + moe_bytes; }

  // What is allocated, a line per kind of server and the sum.
  std::vector<std::string> lines(const EngineConfig& config) const;
};

// `available` is what the machine has to give; weights are mapped from their files and not part of
// it. kInvalidArgument names the option; kResourceExhausted shows the sum.
Result<MemoryPlan> plan_memory(const EngineConfig& config, const ModelSpec& spec,
                               const ModelWeights& weights, const Backend& backend,
                               int64_t available);

// Memory that this process may still take: the machine's, or its control group's if less.
int64_t available_memory_bytes();

// "512 B", "3.2 MiB", "1.50 GiB".
std::string format_bytes(int64_t bytes);

}  // namespace expertplex
