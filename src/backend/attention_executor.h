// AttentionExecutor: runs the iterations of one attention server on one device: embedding, then per
// layer attention, router, dispatch to the MoE servers and combine, then final norm, LM head and
// sampling. Implemented by src/cpu (and later src/cuda); driven by src/serving.
//
// Contract: a sequence's outputs do not depend, bit for bit, on the other sequences of the
// iteration. Thread rules: one thread per executor, except abort().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "apk/phase.h"
#include "base/result.h"

namespace expertplex {

// How the next token of a sequence is drawn; semantics in model/sampling_params.h.
struct SampleSpec {
  float temperature = 0.0f;
  float top_p = 1.0f;
  int top_k = 0;
  uint64_t seed = 0;
  // Ids that may not be chosen now (eos before min_tokens).
  std::span<const int32_t> forbidden;
};

// The rows of one sequence in one iteration: `row_count` new tokens at positions
// [context_length, context_length + row_count), whose keys and values go to the pages of
// block_table.
struct SequenceRows {
  int row_count = 0;
  int context_length = 0;
  std::span<const uint32_t> block_table;  // covers context_length + row_count tokens
  // Set if the token after the last row is to be sampled (decode, and the last piece of a prompt).
  std::optional<SampleSpec> sample;
};

struct IterationInput {
  apk::Phase phase = apk::Phase::kDecode;
  std::span<const int32_t> tokens;  // all sequences' new tokens, one after the other
  std::span<const SequenceRows> sequences;
  // Called after each layer's keys and values are in the cache (KV handoff layer by layer).
  std::function<void(int layer)> on_layer_cached;
};

struct IterationOutput {
  std::vector<int32_t> next_tokens;  // per sequence; -1 where none was sampled
};

// For tests and tools: what an iteration computed on the way. Filled only when attached.
struct IterationProbe {
  std::vector<float> logits;  // [sampled sequences, vocab] or [rows, vocab]
  bool logits_of_all_rows = false;
  std::vector<std::vector<int32_t>> expert_ids;    // per layer [rows, top_k], ascending
  std::vector<std::vector<float>> expert_weights;  // per layer [rows, top_k]
  std::vector<std::vector<float>> hidden;          // per layer [rows, hidden], after the layer
};

class AttentionExecutor {
 public:
  virtual ~AttentionExecutor() = default;

  virtual Result<IterationOutput> run_iteration(const IterationInput& input,
                                                IterationProbe* probe = nullptr) = 0;
  // Takes part in an iteration of the decode group without rows of its own.
  virtual Result<void> skip_iteration() = 0;
  // Ends a running iteration with kCancelled; from any thread.
  virtual void abort() = 0;
};

}  // namespace expertplex
