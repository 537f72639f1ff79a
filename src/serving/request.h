// Request: one generation request inside the engine, from submit until everything it held has come
// back. What the user sees (`finish`) and what the request still holds (`state`, pages, slot) are
// two things: a cancelled request has its last update at once, but stays here until no server works
// on its pages and both sides have acknowledged.
//
// Thread rules: owned by EngineCore, changed under the engine's lock. A server that runs an
// iteration reads `prompt` and the page lists outside the lock: they do not change between
// admission and release.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "serving/handoff_slots.h"
#include "serving/output_processor.h"

namespace expertplex {

enum class RequestState : uint8_t {
  kQueued,      // holds nothing
  kAdmitted,    // pages on both sides, a seat and a handoff slot are reserved; no server knows it
  kPrefilling,  // its first prefill iteration has begun
  kHandingOff,  // prefill is over; the handoff word is (to be) published, not yet taken
  kDecoding,    // the decode server has its pages
};

struct Request {
  Request(RequestId request_id, GenerationRequest generation, OutputProcessor processor)
      : id(request_id),
        prompt(std::move(generation.prompt)),
        sampling(std::move(generation.sampling)),
        accepted_at(generation.accepted_at),
        output(std::move(processor)) {}

  const RequestId id;
  const std::vector<int32_t> prompt;
  const SamplingParams sampling;
  const Nanoseconds accepted_at;
  int max_tokens = 0;  // resolved
  OutputProcessor output;

  RequestState state = RequestState::kQueued;
  FinishReason finish = FinishReason::kNone;  // set with the last update
  bool in_flight = false;                     // part of a running iteration

  // From admission on. Each half is given back by itself; an empty list means given back.
  int prefill_server = -1, decode_server = -1;
  HandoffSlot slot;
  std::vector<uint32_t> prefill_pages, decode_pages;

  int prefilled = 0;  // prompt tokens whose keys and values are in the prefill server's cache
  int32_t last_token = -1;

  Nanoseconds submitted_at = 0, scheduled_at = 0, first_token_at = 0, last_token_at = 0;
  Nanoseconds handoff_at = 0;

  bool ended() const { return finish != FinishReason::kNone; }
  int prompt_size() const { return static_cast<int>(prompt.size()); }
};

}  // namespace expertplex
