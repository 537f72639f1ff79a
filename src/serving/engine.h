// Engine: the serving system of one process: prefill and decode attention servers, MoE servers, and
// the policies that move requests between them. The API hands it requests and gets text back.
//
// Life of a request: submit (bounded queue) -> pages reserved on a decode server -> prefill
// iterations -> KV handoff, layer by layer -> first token -> decode iterations -> finished. It can
// be cancelled in every state; everything it held comes back.
//
// Thread rules: all members may be called from any thread. Sinks are called from the servers'
// threads, one call at a time per request, and must not block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/result.h"
#include "model/sampling_params.h"
#include "model/tokenizer.h"

namespace expertplex {

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// KV pages for the prompt and max_tokens are reserved before prefill starts, so that decode never
// runs out of them; without max_tokens that is the rest of the context.
struct GenerationRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  Nanoseconds accepted_at = 0;  // when the request reached the socket: TTFT starts here
};

// What became new for a request. The last one has finish != kNone; nothing follows it.
struct GenerationUpdate {
  std::string text;  // whole code points only; stop strings already cut
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;  // with kError
  int prompt_tokens = 0;
  int completion_tokens = 0;  // so far
};

class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void on_update(GenerationUpdate update) = 0;
};

struct EngineConfig {
  int prefill_servers = 1;
  int decode_servers = 1;
  int moe_servers = 2;
  int moe_clusters = 0;            // per MoE server; 0 = the backend's choice, at least 2
  int max_model_len = 0;           // 0 = the model's
  int max_prefill_tokens = 16384;  // per prefill iteration
  int max_decode_batch = 64;       // sequences per decode server and iteration
  int max_queued_requests = 1024;
  int64_t kv_cache_bytes = 0;  // per attention server; 0 = chosen from the model, printed
  MoeActivation activation = MoeActivation::kNative;
  SharingConfig sharing;
  Nanoseconds wait_limit = 30 * kSecond;
};

// Everything `/metrics` shows. Counters only grow; gauges are of now. Histograms hold per-bucket
// counts (not cumulative) beside their upper bounds.
struct Histogram {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // bounds.size() + 1: the last is above all bounds
  double sum = 0;
  uint64_t count = 0;
  void observe(double value);
};

struct EngineStatistics {
  int running = 0, waiting = 0;
  int64_t kv_pages_used = 0, kv_pages_total = 0;
  int handoff_slots_used = 0;
  uint64_t prompt_tokens = 0, generation_tokens = 0;
  uint64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_error = 0;
  uint64_t rejected_queue_full = 0;
  uint64_t prefill_iterations = 0, decode_iterations = 0;
  Histogram ttft_seconds, itl_seconds, tpot_seconds, e2e_seconds, queue_seconds, prefill_seconds,
      decode_seconds, prompt_length, generation_length, iteration_tokens;
  std::vector<MoeStatistics> moe;
};

// Health means progress: a server that has work but has not moved for too long is named.
struct Health {
  bool healthy = true;
  std::string detail;
};

// One sequence of a call, and who is told about it.
struct Submission {
  GenerationRequest request;
  std::shared_ptr<GenerationSink> sink;
};

class Engine {
 public:
  // Builds windows, servers and threads; prints layout and buffers before allocating. A model that
  // does not fit is refused with the arithmetic shown.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config, const ModelSpec& spec,
                                                std::shared_ptr<const ModelWeights> weights,
                                                std::shared_ptr<const Tokenizer> tokenizer,
                                                Backend& backend);
  virtual ~Engine() = default;

  // Checks lengths against the context; kResourceExhausted when the queue is full, kUnavailable
  // while draining.
  virtual Result<RequestId> submit(GenerationRequest request,
                                   std::shared_ptr<GenerationSink> sink) = 0;
  // All of them or none: what a client sends as one call (several prompts, n) is never started in
  // part. kResourceExhausted when they do not fit in the queue now, kInvalidArgument when they
  // never will.
  virtual Result<std::vector<RequestId>> submit_all(std::vector<Submission> submissions) = 0;
  // The sink gets a last update with kCancelled, unless the request has finished.
  virtual void cancel(RequestId id) = 0;

  // Stops taking requests, finishes those that run, at most `limit`; the rest is cancelled.
  virtual Result<void> drain(Nanoseconds limit) = 0;

  virtual EngineStatistics statistics() const = 0;
  virtual Health health() const = 0;
  virtual int max_model_len() const = 0;
  // Layout, budget, buffers: what /server_info shows.
  virtual Json describe() const = 0;
};

}  // namespace expertplex
