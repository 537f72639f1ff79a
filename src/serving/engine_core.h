// EngineCore: the policy of the engine as one deterministic state machine: which request goes where
// and when, who holds which pages, what users are told. No threads, no clock, no randomness:
// drivers (the server threads of the engine, a simulator, a test) call it with `now` and do the
// work that it hands out.
//
//   submit -> [queue] -> admit -> next_prefill / prefill_done ... -> handoff words -> next_decode /
//   decode_done ... -> last update
//
// Handoff (transport/kv_handoff.h). Every request whose prefill has begun ends it with exactly one
// exchange of words, whatever happened to it: the prefill server publishes {epoch, tokens + 1}, or
// {epoch, 0 + 1} when nothing is to be taken (cancelled, failed, ended with its first token); the
// decode server answers taken or cancelled. The word tells the decode side that no put is on its
// way any more, so that its pages may be reused; the answer tells the prefill side the same about
// its own.
//
// After every call the driver collects take_updates() (for users) and take_wakeups() (servers that
// may have something to do now).
//
// Thread rules: none inside; EngineHub steps it under a lock. Spans in batches point into requests
// and stay valid until the batch's done/failed call.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apk/phase.h"
#include "backend/attention_executor.h"
#include "serving/admission.h"
#include "serving/decode_batcher.h"
#include "serving/decode_group.h"
#include "serving/engine.h"
#include "serving/prefill_batcher.h"
#include "serving/request.h"

namespace expertplex {

struct EngineCoreConfig {
  AdmissionConfig admission;
  int max_prefill_tokens = 0;  // per iteration, a multiple of kKvPageTokens
  int max_decode_batch = 0;
  int max_model_len = 0;
  int vocab_size = 0;
  std::vector<int32_t> eos_tokens;
  // A handoff that is not acknowledged for so long fails its request.
  Nanoseconds handoff_limit = 30 * kSecond;
};

struct NewRequest {
  GenerationRequest generation;
  std::unique_ptr<TextStream> text;
};

struct CoreUpdate {
  RequestId id;
  GenerationUpdate update;
};

struct AttentionServerId {
  apk::Phase phase = apk::Phase::kDecode;
  int index = 0;
  bool operator==(const AttentionServerId&) const = default;
};

// What one iteration of an attention server computes: the fields of IterationInput, owned.
struct Batch {
  // The pages of a prefill piece and where they go.
  struct Puts {
    int decode_server = 0;
    std::span<const uint32_t> source, destination;
  };
  std::vector<RequestId> requests;  // per sequence
  std::vector<int32_t> tokens;
  std::vector<SequenceRows> sequences;
  std::vector<Puts> puts;  // prefill: per sequence
  bool empty() const { return sequences.empty(); }
};

// One handoff: its words and what they say.
struct Handoff {
  RequestId request;
  int prefill_server = 0, decode_server = 0;
  HandoffSlot slot;
  uint32_t token_count = 0;  // 0: nothing to take
};

class EngineCore {
 public:
  explicit EngineCore(const EngineCoreConfig& config);

  // --- users ---
  // kInvalidArgument: lengths, ids or sampling parameters; kResourceExhausted: queue full;
  // kUnavailable: draining.
  Result<RequestId> submit(GenerationRequest request, std::unique_ptr<TextStream> text,
                           Nanoseconds now);
  // All of them or none; kInvalidArgument too if the queue can never hold so many.
  Result<std::vector<RequestId>> submit_all(std::vector<NewRequest> requests, Nanoseconds now);
  // Ends the request with kCancelled; unknown and ended requests are left alone.
  void cancel(RequestId id, Nanoseconds now);
  void stop_accepting() { accepting_ = false; }
  void cancel_all(Nanoseconds now);
  // Nobody waits, runs or holds anything.
  bool idle() const { return requests_.empty(); }

  // --- prefill servers ---
  std::optional<Batch> next_prefill(int server, Nanoseconds now);
  // next_tokens: per sequence of the batch, -1 where none was to be sampled.
  void prefill_done(int server, std::span<const int32_t> next_tokens, Nanoseconds now);
  // The iteration failed: its requests end with the error.
  void prefill_failed(int server, const Error& error, Nanoseconds now);
  // Words to publish now; each is given once.
  std::vector<Handoff> take_handoffs_to_publish(int server, Nanoseconds now);
  // Words that were published and whose answer has not been seen.
  std::vector<Handoff> unacknowledged_handoffs(int server) const;
  void handoff_acknowledged(int server, RequestId id, Nanoseconds now);
  // Fails requests whose handoff has waited longer than the limit. What they hold stays theirs
  // until the words arrive: pages that a peer may still write are never reused.
  void expire_handoffs(int server, Nanoseconds now);

  // --- decode servers ---
  // Words to look for.
  std::vector<Handoff> expected_handoffs(int server) const;
  // A word has arrived. Returns the answer: taken, or not.
  bool handoff_arrived(int server, RequestId id, uint32_t token_count, Nanoseconds now);
  // The member's part in the group's open iteration, if it has one to take: a batch, or an empty
  // one (skip_iteration). Every part is answered by decode_done or decode_failed.
  std::optional<Batch> next_decode(int server, Nanoseconds now);
  // The member's iteration is under way: it has taken its number (decode_group.h).
  void decode_begun(int server, Nanoseconds now);
  void decode_done(int server, std::span<const int32_t> next_tokens, Nanoseconds now);
  void decode_failed(int server, const Error& error, Nanoseconds now);

  // --- after every call ---
  std::vector<CoreUpdate> take_updates() { return std::exchange(updates_, {}); }
  std::vector<AttentionServerId> take_wakeups() { return std::exchange(wakeups_, {}); }

  // --- watching ---
  EngineStatistics statistics() const;
  // Of the decode group, as it counts them.
  uint64_t decode_iteration() const { return group_.iteration(); }
  // The iteration of a server moves (a layer is done).
  void note_progress(AttentionServerId server, Nanoseconds now) { moved_at(server) = now; }
  // What does not move although it has work, or fails again and again; empty if all is well.
  std::string complaints(Nanoseconds now, Nanoseconds limit) const;

 private:
  struct Progress {
    Nanoseconds moved_at = 0;
    int failures = 0;  // in a row
    std::string last_error;
  };
  struct PrefillState : Progress {
    explicit PrefillState(int max_tokens) : batcher(max_tokens) {}
    PrefillBatcher batcher;
    std::vector<PrefillPiece> in_flight;
    std::vector<Request*> to_publish, unacknowledged;
  };
  struct DecodeState : Progress {
    explicit DecodeState(int max_batch) : batcher(max_batch) {}
    DecodeBatcher batcher;
    std::vector<Request*> in_flight, expected;
  };

  Result<int> resolve_max_tokens(const GenerationRequest& request) const;
  Result<void> check_room(size_t count);
  RequestId enqueue(NewRequest request, int max_tokens, Nanoseconds now);
  void admit(Nanoseconds now);
  void take_token(Request& request, int32_t token, Nanoseconds now);
  void end(Request& request, FinishReason reason, std::optional<Error> error, Nanoseconds now);
  void mark_ended(Request& request, FinishReason reason, Nanoseconds now);
  void wind_down(Request& request, Nanoseconds now);
  void begin_handoff(Request& request, Nanoseconds now);
  void release_prefill_half(Request& request);
  void release_decode_half(Request& request);
  void erase_if_released(Request& request);
  Handoff handoff_of(const Request& request) const;
  void add_prefill_piece(Batch& batch, const PrefillPiece& piece, Nanoseconds now);
  void add_decode_row(Batch& batch, Request& request);
  SampleSpec sample_of(const Request& request) const;
  void open_decode_iteration(Nanoseconds now);
  void leave_decode_iteration(int server, const Error* error, Nanoseconds now);
  bool any_sequence() const;
  void fail_sequences(const std::vector<Request*>& sequences, const Error& error, Nanoseconds now);
  void wake(AttentionServerId server);
  bool has_work(const PrefillState& server) const;
  bool has_work(int decode_server) const;
  Nanoseconds& moved_at(AttentionServerId server);
  Request& find(RequestId id);

  EngineCoreConfig config_;
  bool accepting_ = true;
  uint64_t next_id_ = 1;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  Admission admission_;
  std::vector<PrefillState> prefill_;
  std::vector<DecodeState> decode_;
  DecodeGroup group_;
  std::vector<CoreUpdate> updates_;
  std::vector<AttentionServerId> wakeups_;
  EngineStatistics statistics_;
  int running_ = 0;
};

}  // namespace expertplex
