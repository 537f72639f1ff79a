// Servers' side of EngineCore: iterations, handoffs, the decode group, health.
#include <algorithm>

#include "backend/kv_cache.h"
#include "base/check.h"
#include "serving/engine_core.h"

namespace expertplex {
namespace {

// A server that fails so often in a row is reported, whatever the traffic.
constexpr int kFailuresToComplain = 3;
// A decode iteration that its leader could not begin is tried so often again.
constexpr int kDismissalsToFail = 1;

}  // namespace

// --- prefill ---

SampleSpec EngineCore::sample_of(const Request& request) const {
  const SamplingParams& sampling = request.sampling;
  SampleSpec spec{.temperature = sampling.temperature,
                  .top_p = sampling.top_p,
                  .top_k = sampling.top_k,
                  .seed = sampling.seed.value_or(request.id.value),
                  .forbidden = {}};
  if (request.output.before_min_tokens()) spec.forbidden = request.output.early_forbidden();
  return spec;
}

void EngineCore::add_prefill_piece(Batch& batch, const PrefillPiece& piece, Nanoseconds now) {
  Request& request = *piece.request;
  request.in_flight = true;
  if (request.state == RequestState::kAdmitted) {
    request.state = RequestState::kPrefilling;
    request.scheduled_at = now;
  }
  const int end = piece.first + piece.count;
  batch.requests.push_back(request.id);
  batch.tokens.insert(batch.tokens.end(), request.prompt.begin() + piece.first,
                      request.prompt.begin() + end);
  SequenceRows rows{.row_count = piece.count,
                    .context_length = piece.first,
                    .block_table = request.prefill_pages,
                    .sample = std::nullopt};
  if (piece.last()) rows.sample = sample_of(request);
  batch.sequences.push_back(rows);
  const auto first_page = static_cast<size_t>(piece.first / kKvPageTokens);
  const auto page_count = static_cast<size_t>(pages_for(end)) - first_page;
  batch.puts.push_back(
      {request.decode_server,
       std::span<const uint32_t>(request.prefill_pages).subspan(first_page, page_count),
       std::span<const uint32_t>(request.decode_pages).subspan(first_page, page_count)});
}

std::optional<Batch> EngineCore::next_prefill(int index, Nanoseconds now) {
  PrefillState& server = prefill_[index];
  EXPERTPLEX_CHECK(server.in_flight.empty(), "prefill server {} is running", index);
  server.in_flight = server.batcher.form();
  if (server.in_flight.empty()) return std::nullopt;
  Batch batch;
  for (const PrefillPiece& piece : server.in_flight) add_prefill_piece(batch, piece, now);
  server.moved_at = now;
  return batch;
}

void EngineCore::prefill_done(int index, std::span<const int32_t> next_tokens, Nanoseconds now) {
  PrefillState& server = prefill_[index];
  const std::vector<PrefillPiece> pieces = std::exchange(server.in_flight, {});
  EXPERTPLEX_CHECK(!pieces.empty() && next_tokens.size() == pieces.size());
  server.moved_at = now;
  server.failures = 0;
  ++statistics_.prefill_iterations;
  int64_t rows = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Request& request = *pieces[i].request;
    const bool last = pieces[i].last();
    request.in_flight = false;
    server.batcher.advance(pieces[i]);
    rows += pieces[i].count;
    if (request.ended()) {
      wind_down(request, now);
    } else if (last) {
      EXPERTPLEX_CHECK(next_tokens[i] >= 0, "no token for request {}", request.id.value);
      server.batcher.remove(&request);
      take_token(request, next_tokens[i], now);
      begin_handoff(request, now);
    }
  }
  statistics_.prompt_tokens += static_cast<uint64_t>(rows);
  statistics_.iteration_tokens.observe(static_cast<double>(rows));
}

void EngineCore::prefill_failed(int index, const Error& error, Nanoseconds now) {
  PrefillState& server = prefill_[index];
  const std::vector<PrefillPiece> pieces = std::exchange(server.in_flight, {});
  EXPERTPLEX_CHECK(!pieces.empty());
  server.moved_at = now;
  ++server.failures;
  server.last_error = error.message;
  for (const PrefillPiece& piece : pieces) {
    piece.request->in_flight = false;
    if (piece.request->ended()) {
      wind_down(*piece.request, now);
    } else {
      end(*piece.request, FinishReason::kError, error, now);
    }
  }
}

// --- handoff ---

void EngineCore::begin_handoff(Request& request, Nanoseconds now) {
  request.state = RequestState::kHandingOff;
  request.handoff_at = now;
  prefill_[request.prefill_server].to_publish.push_back(&request);
  wake({apk::Phase::kPrefill, request.prefill_server});
}

Handoff EngineCore::handoff_of(const Request& request) const {
  return {.request = request.id,
          .prefill_server = request.prefill_server,
          .decode_server = request.decode_server,
          .slot = request.slot,
          .token_count = request.ended() ? 0 : static_cast<uint32_t>(request.prompt_size())};
}

std::vector<Handoff> EngineCore::take_handoffs_to_publish(int index, Nanoseconds now) {
  PrefillState& server = prefill_[index];
  std::vector<Handoff> handoffs;
  for (Request* request : std::exchange(server.to_publish, {})) {
    handoffs.push_back(handoff_of(*request));
    server.unacknowledged.push_back(request);
    if (!has_work(request->decode_server)) decode_[request->decode_server].moved_at = now;
    decode_[request->decode_server].expected.push_back(request);
  }
  if (!handoffs.empty()) server.moved_at = now;
  return handoffs;
}

std::vector<Handoff> EngineCore::unacknowledged_handoffs(int server) const {
  std::vector<Handoff> handoffs;
  for (const Request* request : prefill_[server].unacknowledged) {
    handoffs.push_back(handoff_of(*request));
  }
  return handoffs;
}

std::vector<Handoff> EngineCore::expected_handoffs(int server) const {
  std::vector<Handoff> handoffs;
  for (const Request* request : decode_[server].expected) handoffs.push_back(handoff_of(*request));
  return handoffs;
}

bool EngineCore::handoff_arrived(int index, RequestId id, uint32_t token_count, Nanoseconds now) {
  Request& request = find(id);
  DecodeState& server = decode_[index];
  EXPERTPLEX_CHECK(std::erase(server.expected, &request) == 1);
  EXPERTPLEX_CHECK(token_count == 0 || token_count == request.prompt.size(),
                   "handoff of {} tokens, expected {}", token_count, request.prompt.size());
  server.moved_at = now;
  if (token_count == 0 || request.ended()) {
    EXPERTPLEX_CHECK(request.ended());
    release_decode_half(request);
    admit(now);
    return false;
  }
  request.state = RequestState::kDecoding;
  server.batcher.join(&request);
  return true;
}

void EngineCore::handoff_acknowledged(int index, RequestId id, Nanoseconds now) {
  Request& request = find(id);
  EXPERTPLEX_CHECK(std::erase(prefill_[index].unacknowledged, &request) == 1);
  prefill_[index].moved_at = now;
  release_prefill_half(request);
  admit(now);
}

void EngineCore::expire_handoffs(int index, Nanoseconds now) {
  for (Request* request : prefill_[index].unacknowledged) {
    if (request->ended() || request->state != RequestState::kHandingOff ||
        now - request->handoff_at <= config_.handoff_limit) {
      continue;
    }
    end(*request, FinishReason::kError,
        make_error(ErrorCode::kDeadlineExceeded,
                   "KV handoff of {} tokens from prefill attention server {} to decode attention "
                   "server {} (slot {}, epoch {}) was not taken within {:.0f} s",
                   request->prompt_size(), index, request->decode_server, request->slot.index,
                   request->slot.epoch, to_seconds(config_.handoff_limit)),
        now);
  }
}

// --- decode ---

void EngineCore::open_decode_iteration(Nanoseconds now) {
  group_.open();
  for (size_t i = 0; i < decode_.size(); ++i) {
    if (!has_work(static_cast<int>(i))) decode_[i].moved_at = now;
    wake({apk::Phase::kDecode, static_cast<int>(i)});
  }
}

void EngineCore::add_decode_row(Batch& batch, Request& request) {
  request.in_flight = true;
  batch.requests.push_back(request.id);
  batch.tokens.push_back(request.last_token);
  // The last token was sampled and is not in the cache yet.
  const int context = request.prompt_size() + request.output.token_count() - 1;
  batch.sequences.push_back({.row_count = 1,
                             .context_length = context,
                             .block_table = request.decode_pages,
                             .sample = sample_of(request)});
}

bool EngineCore::any_sequence() const {
  return std::any_of(decode_.begin(), decode_.end(),
                     [](const DecodeState& server) { return !server.batcher.empty(); });
}

std::optional<Batch> EngineCore::next_decode(int index, Nanoseconds now) {
  if (!group_.is_open() && any_sequence()) open_decode_iteration(now);
  if (!group_.may_join(index)) return std::nullopt;
  group_.join(index);
  DecodeState& server = decode_[index];
  server.in_flight = server.batcher.form();
  server.moved_at = now;
  Batch batch;
  for (Request* request : server.in_flight) add_decode_row(batch, *request);
  return batch;
}

void EngineCore::decode_begun(int index, Nanoseconds now) {
  decode_[index].moved_at = now;
  if (index != 0 || !group_.begin()) return;
  for (int i = 1; i < static_cast<int>(decode_.size()); ++i) {
    decode_[i].moved_at = now;
    wake({apk::Phase::kDecode, i});
  }
}

void EngineCore::decode_done(int index, std::span<const int32_t> next_tokens, Nanoseconds now) {
  DecodeState& server = decode_[index];
  const std::vector<Request*> sequences = std::exchange(server.in_flight, {});
  EXPERTPLEX_CHECK(next_tokens.size() == sequences.size());
  decode_begun(index, now);
  server.failures = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Request& request = *sequences[i];
    request.in_flight = false;
    if (!request.ended()) {
      EXPERTPLEX_CHECK(next_tokens[i] >= 0, "no token for request {}", request.id.value);
      take_token(request, next_tokens[i], now);
    }
    if (request.ended()) wind_down(request, now);
  }
  if (!sequences.empty()) {
    ++statistics_.decode_iterations;
    statistics_.iteration_tokens.observe(static_cast<double>(sequences.size()));
  }
  leave_decode_iteration(index, nullptr, now);
}

void EngineCore::decode_failed(int index, const Error& error, Nanoseconds now) {
  DecodeState& server = decode_[index];
  ++server.failures;
  server.last_error = error.message;
  fail_sequences(std::exchange(server.in_flight, {}), error, now);
  leave_decode_iteration(index, &error, now);
}

void EngineCore::fail_sequences(const std::vector<Request*>& sequences, const Error& error,
                                Nanoseconds now) {
  for (Request* request : sequences) {
    request->in_flight = false;
    if (request->ended()) {
      wind_down(*request, now);
    } else {
      end(*request, FinishReason::kError, error, now);
    }
  }
}

// When the last member has left and work is there, everybody is told. Sequences of members that
// were dismissed have lost nothing and are tried once more; a leader that fails again ends them.
void EngineCore::leave_decode_iteration(int index, const Error* error, Nanoseconds now) {
  decode_[index].moved_at = now;
  if (group_.leave(index, error != nullptr) && group_.dismissals() > kDismissalsToFail) {
    for (DecodeState& server : decode_) {
      fail_sequences(server.batcher.form(), error->in("leader of the decode group"), now);
    }
  }
  if (!group_.is_open() && any_sequence()) open_decode_iteration(now);
}

// --- health ---

bool EngineCore::has_work(const PrefillState& server) const {
  // A word that the decode server has not taken yet is that server's work.
  const auto answered = [](const Request* request) {
    return request->state == RequestState::kDecoding || request->decode_pages.empty();
  };
  return !server.in_flight.empty() || !server.batcher.empty() || !server.to_publish.empty() ||
         std::any_of(server.unacknowledged.begin(), server.unacknowledged.end(), answered);
}

bool EngineCore::has_work(int index) const {
  const DecodeState& server = decode_[index];
  return !server.batcher.empty() || !server.expected.empty() || group_.may_join(index) ||
         group_.has_joined(index);
}

Nanoseconds& EngineCore::moved_at(AttentionServerId server) {
  return server.phase == apk::Phase::kPrefill ? prefill_[server.index].moved_at
                                              : decode_[server.index].moved_at;
}

std::string EngineCore::complaints(Nanoseconds now, Nanoseconds limit) const {
  std::string text;
  const auto examine = [&](const char* phase, size_t index, const auto& server, bool busy) {
    if (busy && now - server.moved_at > limit) {
      text += fmt::format("{} attention server {} has work but has not moved for {:.1f} s; ", phase,
                          index, to_seconds(now - server.moved_at));
    }
    if (server.failures >= kFailuresToComplain) {
      text += fmt::format("{} attention server {} failed {} times in a row: {}; ", phase, index,
                          server.failures, server.last_error);
    }
  };
  for (size_t i = 0; i < prefill_.size(); ++i)
    examine("prefill", i, prefill_[i], has_work(prefill_[i]));
  for (size_t i = 0; i < decode_.size(); ++i) {
    examine("decode", i, decode_[i], has_work(static_cast<int>(i)));
  }
  const Request* head = admission_.head();
  if (head != nullptr && running_ == 0 && now - head->submitted_at > limit) {
    text +=
        fmt::format("request {} waits for pages although nothing runs ({} of {} pages in use); ",
                    head->id.value, admission_.pages_used(), admission_.pages_total());
  }
  if (!text.empty()) text.resize(text.size() - 2);
  return text;
}

}  // namespace expertplex
