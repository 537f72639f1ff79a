#include "transport/moe_client.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/moe_client_base.h"

namespace expertplex::transport {
namespace {

Result<void> check_config(const MoeClient::Config& config) {
  const MoeBufferConfig& b = config.buffers;
  EXPERTPLEX_TRY(b.check());
  const bool decode = config.phase == MoePhase::kDecode;
  const int members = decode ? b.decode_participants : b.prefill_senders;
  if (config.member < 0 || config.member >= members) {
    return make_error(ErrorCode::kInvalidArgument, "{}: member: expected 0 to {}, got {}",
                      config.name, members - 1, config.member);
  }
  if (config.microbatch < 0 || config.microbatch >= b.microbatches) {
    return make_error(ErrorCode::kInvalidArgument, "{}: microbatch: expected 0 to {}, got {}",
                      config.name, b.microbatches - 1, config.microbatch);
  }
  if (static_cast<int>(config.moe_windows.size()) != b.moe_server_count) {
    return make_error(ErrorCode::kInvalidArgument, "{}: expected windows of {} MoE servers, got {}",
                      config.name, b.moe_server_count, config.moe_windows.size());
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<MoeClient>> MoeClient::connect(Fabric& fabric, const Config& config) {
  EXPERTPLEX_TRY(check_config(config));
  const bool decode = config.phase == MoePhase::kDecode;
  std::vector<MoeClientBase::Server> servers;
  const Nanoseconds deadline = now_ns() + config.wait_limit;
  for (int s = 0; s < config.buffers.moe_server_count; ++s) {
    const std::string& name = config.moe_windows[s];
    EXPERTPLEX_ASSIGN(auto layout, MoeBufferLayout::plan(config.buffers, s));
    auto window = fabric.open_window(name, std::max<Nanoseconds>(deadline - now_ns(), 0));
    if (!window) return window.error().in(fmt::format("{}: MoE server {}", config.name, s));
    if ((*window)->bytes() != layout.total_bytes()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: window '{}' of MoE server {} has {} bytes, expected {}: the buffer "
                        "configurations differ",
                        config.name, name, s, (*window)->bytes(), layout.total_bytes());
    }
    servers.push_back(
        {*window, std::move(layout), fmt::format("the done word of MoE server {}", s)});
  }
  return decode ? make_decode_client(config, std::move(servers))
                : make_prefill_client(config, std::move(servers));
}

MoeClientBase::MoeClientBase(const Config& config, std::vector<Server> servers, int max_tokens,
                             int max_pulled_rows)
    : config_(config),
      servers_(std::move(servers)),
      channel_(config.buffers.channel(config.phase, config.member, config.microbatch)) {
  const MoeBufferConfig& b = buffers();
  const size_t slots = static_cast<size_t>(max_tokens) * b.top_k;
  counts_.resize(b.expert_count);
  pulled_stride_ = servers_[0].layout.combine_stride();
  pulled_.resize(static_cast<size_t>(max_pulled_rows) * pulled_stride_);
  row_pointers_.resize(slots);
  row_weights_.resize(slots, 1.0f);
  row_counts_.resize(max_tokens);
  const int members = config.phase == MoePhase::kDecode ? b.decode_participants : 1;
  mask_ = next_mask_ = static_cast<uint32_t>((uint64_t{1} << members) - 1);
  adopt_epoch();
}

void MoeClientBase::adopt_epoch() {
  // A restarted leader goes on after the last epoch of its forerunner. A follower takes part in the
  // iteration that it finds, unless a forerunner had begun it.
  const Server& first = servers_[0];
  const uint64_t iteration = first.window->load(first.layout.iteration_word(channel_));
  if (iteration == 0) return;
  epoch_ = unpack(iteration).epoch;
  if (leads()) return;
  const uint64_t begun = first.window->load(first.layout.ready_word(channel_, 0, config_.member));
  if (unpack(begun).epoch != epoch_) --epoch_;
}

WaitSpec MoeClientBase::wait_spec(std::string_view word, WordValue expected,
                                  Nanoseconds limit) const {
  return {.waiter = config_.name,
          .word = word,
          .expected = expected,
          .limit = std::max<Nanoseconds>(limit, 0),
          .abort = &abort_};
}

Result<void> MoeClientBase::begin_iteration() {
  if (abort_.load(std::memory_order_acquire) != 0) {
    return make_error(ErrorCode::kCancelled, "{} was aborted", config_.name);
  }
  if (leads()) {
    // The others may still be in an iteration that this client only put zeros into. If it does not
    // end, the next call gives it up.
    if (std::exchange(skipped_, false)) EXPERTPLEX_TRY(wait_done(buffers().layer_count));
    ++epoch_;
    mask_ = next_mask_;
    for (size_t s = servers_.size(); s-- > 0;) {
      servers_[s].window->signal(servers_[s].layout.iteration_word(channel_), pack({epoch_, mask_}),
                                 kMoeIterationBell);
    }
  } else {
    EXPERTPLEX_TRY(await_iteration());
  }
  next_layer_ = 0;
  combining_ = skipped_ = false;
  return {};
}

Result<void> MoeClientBase::await_iteration() {
  const Server& server = servers_[0];
  const uint32_t last = epoch_;
  const auto seen = server.window->wait(
      server.layout.iteration_word(channel_), kMoeIterationBell,
      [last](uint64_t bits) { return epoch_after(unpack(bits).epoch, last); },
      wait_spec("the iteration word of decode participant 0", {last + 1, mask_},
                config_.wait_limit));
  if (!seen) return seen.error();
  const WordValue word = unpack(*seen);
  epoch_ = word.epoch;
  mask_ = word.value;
  server.window->signal(server.layout.ready_word(channel_, 0, config_.member), pack({epoch_, 0}),
                        kMoeIterationBell);
  if ((mask_ >> config_.member & 1) == 0) {
    return make_error(ErrorCode::kUnavailable,
                      "{} (participant {}) is not in the decode group of iteration {}: mask {:#x}",
                      config_.name, config_.member, epoch_, mask_);
  }
  return {};
}

Result<void> MoeClientBase::set_participants(uint32_t mask) {
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << buffers().decode_participants) - 1);
  if (config_.phase != MoePhase::kDecode || config_.member != 0 || (mask & 1) == 0 ||
      (mask & ~all) != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: participants: only decode participant 0 sets them, to a subset of {:#x} "
                      "with itself, got {:#x}",
                      config_.name, all, mask);
  }
  next_mask_ = mask;
  return {};
}

Result<void> MoeClientBase::skip_iteration() {
  EXPERTPLEX_CHECK(next_layer_ == 0 && !combining_, "{}: skip after dispatch", config_.name);
  for (int layer = 0; layer < buffers().layer_count; ++layer) {
    for (Server& server : servers_) publish_ready(server, layer, 0);
  }
  next_layer_ = buffers().layer_count;
  token_count_ = 0;
  skipped_ = true;
  return {};
}

Result<void> MoeClientBase::begin_dispatch(int layer, std::span<const std::byte> rows,
                                           const Routing& routing) {
  EXPERTPLEX_CHECK(layer == next_layer_ && !combining_,
                   "{}: dispatch of layer {}, next is {}, combine pending: {}", config_.name, layer,
                   next_layer_, combining_);
  const MoeBufferConfig& b = buffers();
  const int tokens = routing.token_count;
  const size_t pairs = static_cast<size_t>(std::max(tokens, 0)) * b.top_k;
  if (tokens < 0 || tokens > static_cast<int>(row_counts_.size()) || routing.top_k != b.top_k ||
      routing.expert_ids.size() != pairs || routing.weights.size() != pairs ||
      rows.size() < static_cast<size_t>(tokens) * b.dispatch_row_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: dispatch of layer {}: expected at most {} tokens with top_k {}, got {} "
                      "with {}, {} ids, {} weights, {} row bytes",
                      config_.name, layer, row_counts_.size(), b.top_k, tokens, routing.top_k,
                      routing.expert_ids.size(), routing.weights.size(), rows.size());
  }
  std::fill(counts_.begin(), counts_.end(), 0);
  for (size_t i = 0; i < pairs; ++i) {
    const int32_t expert = routing.expert_ids[i];
    const bool ascending = i % b.top_k == 0 || routing.expert_ids[i - 1] < expert;
    if (expert < 0 || expert >= b.expert_count || !ascending) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "{}: dispatch of layer {}, token {}: expert ids must ascend within [0, {}), "
          "got {}",
          config_.name, layer, i / b.top_k, b.expert_count, expert);
    }
    ++counts_[expert];
  }
  token_count_ = tokens;
  ++next_layer_;
  combining_ = true;
  return {};
}

void MoeClientBase::publish_ready(Server& server, int layer, uint32_t count) {
  const int participant = config_.phase == MoePhase::kDecode ? config_.member : 0;
  server.window->signal(server.layout.ready_word(channel_, layer, participant),
                        pack({epoch_, count + 1}), kMoeReadyBell);
}

Result<void> MoeClientBase::begin_combine(int layer) {
  EXPERTPLEX_CHECK(combining_ && layer == next_layer_ - 1, "{}: combine of layer {}, dispatched {}",
                   config_.name, layer, next_layer_ - 1);
  EXPERTPLEX_TRY(wait_done(layer + 1));
  combining_ = false;
  return {};
}

Result<void> MoeClientBase::wait_done(int layers) {
  const Nanoseconds deadline = now_ns() + config_.wait_limit;
  const WordValue expected{epoch_, static_cast<uint32_t>(layers)};
  for (const Server& server : servers_) {
    const auto done = server.window->wait(
        server.layout.done_word(channel_), kMoeDoneBell,
        [expected](uint64_t bits) {
          const WordValue seen = unpack(bits);
          return seen.epoch == expected.epoch && seen.value >= expected.value;
        },
        wait_spec(server.done_word_name, expected, deadline - now_ns()));
    if (done) continue;
    if (done.error().code != ErrorCode::kDeadlineExceeded) return done.error();
    return make_error(ErrorCode::kDeadlineExceeded, "{}; {}", done.error().message,
                      describe_missing(server, layers - 1));
  }
  return {};
}

std::string MoeClientBase::describe_missing(const Server& server, int layer) const {
  // The done word says up to where the server has come; what it lacks may be an earlier layer.
  const WordValue done = unpack(server.window->load(server.layout.done_word(channel_)));
  const int waiting_for = done.epoch == epoch_ ? std::min(layer, static_cast<int>(done.value)) : 0;
  std::string missing;
  for (int p = 0; p < kMaxDecodeParticipants; ++p) {
    if ((mask_ >> p & 1) == 0) continue;
    const size_t word = server.layout.ready_word(channel_, waiting_for, p);
    const WordValue ready = unpack(server.window->load(word));
    if (ready.epoch == epoch_ && ready.value > 0) continue;
    missing += fmt::format(
        "{}participant {} has not published layer {} (its ready word: expected epoch {}, seen "
        "{{epoch {}, value {}}})",
        missing.empty() ? "" : ", ", p, waiting_for, epoch_, ready.epoch, ready.value);
  }
  if (!missing.empty()) return missing;
  return fmt::format("all participants have published layer {}: MoE server {} does not answer",
                     waiting_for, server.layout.server());
}

CombinedToken MoeClientBase::combined(int token) const {
  EXPERTPLEX_CHECK(!combining_ && token >= 0 && token < token_count_, "{}: token {} of {}",
                   config_.name, token, token_count_);
  const size_t first = static_cast<size_t>(token) * buffers().top_k;
  const size_t count = row_counts_[token];
  return {{row_pointers_.data() + first, count}, {row_weights_.data() + first, count}};
}

void MoeClientBase::abort() {
  abort_.store(1, std::memory_order_release);
  for (Server& server : servers_) {
    server.window->ring(kMoeDoneBell);
    server.window->ring(kMoeIterationBell);
  }
}

}  // namespace expertplex::transport
