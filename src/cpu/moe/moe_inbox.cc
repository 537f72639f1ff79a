#include "cpu/moe/moe_inbox.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace expertplex::cpu {
namespace {

using apk::Phase;
using apk::phase_index;
using transport::MoePhase;
using transport::pack;
using transport::unpack;
using transport::WordValue;

}  // namespace

MoeInbox::MoeInbox(const MoePlan& plan, std::string server_name, Nanoseconds wait_limit,
                   std::shared_ptr<transport::Window> window, MoeCompute& compute)
    : plan_(plan),
      name_(std::move(server_name)),
      wait_limit_(wait_limit),
      window_(std::move(window)),
      compute_(compute),
      rows_(plan.limits.experts) {
  const transport::MoeBufferConfig& b = plan_.layout.config();
  const auto add = [&](Phase phase, int microbatch, int sender, uint32_t slot) {
    auto channel = std::make_unique<Channel>();
    const auto group = phase == Phase::kDecode ? MoePhase::kDecode : MoePhase::kPrefill;
    channel->index = b.channel(group, sender, microbatch);
    channel->phase = phase;
    channel->slot = slot;
    channel->microbatch = microbatch;
    channel->sender = sender;
    by_slot_[phase_index(phase)].push_back(channel.get());
    channels_.push_back(std::move(channel));
  };
  // Decode first: its operations are looked for first.
  for (uint32_t s = 0; s < plan_.slots(Phase::kDecode); ++s) {
    add(Phase::kDecode, static_cast<int>(s), 0, s);
  }
  for (uint32_t s = 0; s < plan_.slots(Phase::kPrefill); ++s) {
    const int slot = static_cast<int>(s);
    add(Phase::kPrefill, slot / b.prefill_senders, slot % b.prefill_senders, s);
  }
}

Result<bool> MoeInbox::poll(Agent& agent) {
  bool any = false;
  for (const auto& channel : channels_) {
    // More than once where operations are empty and done at once; at most all layers.
    for (int i = 0; i <= plan_.layout.config().layer_count; ++i) {
      EXPERTPLEX_ASSIGN(const bool progress, poll_channel(*channel, agent));
      if (!progress) break;
      any = true;
    }
  }
  return any;
}

Result<bool> MoeInbox::poll_channel(Channel& channel, Agent& agent) {
  if (channel.busy.load(std::memory_order_acquire) != 0) return false;
  EXPERTPLEX_ASSIGN(const bool running, follow_iteration(channel));
  if (!running) return false;
  EXPERTPLEX_ASSIGN(const std::optional<uint32_t> count, arrived(channel));
  if (!count) return false;
  return submit(channel, *count, agent);
}

WordValue MoeInbox::iteration_word(const Channel& channel) const {
  return unpack(window_->load(plan_.layout.iteration_word(channel.index)));
}

Result<bool> MoeInbox::follow_iteration(Channel& channel) {
  const WordValue iteration = iteration_word(channel);
  if (iteration.value == 0) return false;  // nobody has begun one yet
  if (!channel.begun || iteration.epoch != channel.epoch) {
    if (channel.begun && !transport::epoch_after(iteration.epoch, channel.epoch)) {
      return fault(channel, fmt::format("its iteration word went back from epoch {} to {}",
                                        channel.epoch, iteration.epoch));
    }
    const int members =
        channel.phase == Phase::kDecode ? plan_.layout.config().decode_participants : 1;
    if (uint64_t{iteration.value} >> members != 0) {
      return fault(channel, fmt::format("participant mask {:#x} of {} participants",
                                        iteration.value, members));
    }
    channel.begun = true;
    channel.epoch = iteration.epoch;
    channel.mask = iteration.value;
    channel.next_layer = 0;
    channel.incomplete_since = 0;
    channel.reported = false;
  }
  return channel.next_layer < plan_.layout.config().layer_count;
}

Result<std::optional<uint32_t>> MoeInbox::arrived(Channel& channel) {
  const transport::MoeBufferConfig& b = plan_.layout.config();
  const uint64_t most =
      channel.phase == Phase::kDecode
          ? uint64_t{static_cast<uint32_t>(b.max_decode_rows)} *
                static_cast<uint32_t>(std::min(b.top_k, plan_.layout.local_experts()))
          : static_cast<uint64_t>(b.max_prefill_tokens);
  uint32_t sum = 0;
  int missing = -1, present = 0;
  for (int p = 0; p < transport::kMaxDecodeParticipants; ++p) {
    if ((channel.mask >> p & 1) == 0) continue;
    const size_t word = plan_.layout.ready_word(channel.index, channel.next_layer, p);
    const WordValue ready = unpack(window_->load(word));
    if (ready.epoch != channel.epoch || ready.value == 0) {
      // Newer than the iteration is possible only if the iteration word has moved on since.
      if (ready.value > 0 && transport::epoch_after(ready.epoch, channel.epoch) &&
          transport::epoch_after(ready.epoch, iteration_word(channel).epoch)) {
        return fault(channel, fmt::format("participant {} published epoch {} in iteration {}", p,
                                          ready.epoch, channel.epoch));
      }
      missing = p;
      continue;
    }
    if (ready.value - 1 > most) {
      return fault(channel, fmt::format("participant {} announces {} of at most {}", p,
                                        ready.value - 1, most));
    }
    ++present;
    sum += ready.value - 1;
  }
  if (missing < 0) {
    channel.incomplete_since = 0;
    channel.reported = false;
    return std::optional<uint32_t>(sum);
  }
  if (present > 0) note_incomplete(channel, missing);
  return std::optional<uint32_t>();
}

void MoeInbox::note_incomplete(Channel& channel, int missing) {
  const Nanoseconds now = now_ns();
  if (channel.incomplete_since == 0) channel.incomplete_since = now;
  if (channel.reported || now - channel.incomplete_since < wait_limit_) return;
  channel.reported = true;
  waits_timed_out_.fetch_add(1, std::memory_order_relaxed);
  const size_t word = plan_.layout.ready_word(channel.index, channel.next_layer, missing);
  const WordValue seen = unpack(window_->load(word));
  log_warn(
      "{} has waited {:.3f} s for the ready word of {} participant {}, layer {}: expected epoch "
      "{}, seen {{epoch {}, value {}}}; going on waiting",
      name_, to_seconds(now - channel.incomplete_since), apk::phase_name(channel.phase), missing,
      channel.next_layer, channel.epoch, seen.epoch, seen.value);
}

Result<bool> MoeInbox::submit(Channel& channel, uint32_t count, Agent& agent) {
  std::fill(rows_.begin(), rows_.end(), 0);
  if (channel.phase == Phase::kDecode) {
    EXPERTPLEX_ASSIGN(const bool valid, read_decode_rows(channel, count));
    if (!valid) return false;
  } else {
    EXPERTPLEX_TRY(read_prefill_rows(channel, count));
    compute_.note_prefill_rows(channel.slot, rows_.data());
  }
  apk::OperationRequest request;
  request.epoch = channel.sequence + 1 == 0 ? 1 : channel.sequence + 1;
  request.layer = static_cast<uint32_t>(channel.next_layer);
  request.participant_mask = channel.mask;
  request.tokens = channel.phase == Phase::kPrefill ? count : 0;
  request.rows_per_expert = rows_.data();
  channel.done = {channel.epoch, static_cast<uint32_t>(channel.next_layer) + 1};
  channel.busy.store(1, std::memory_order_relaxed);
  open_.fetch_add(1, std::memory_order_relaxed);
  open_by_phase_[phase_index(channel.phase)].fetch_add(1, std::memory_order_relaxed);

  const apk::SubmitResult result = agent.submit(channel.phase, channel.slot, request);
  switch (result) {
    case apk::SubmitResult::kSubmitted:
    case apk::SubmitResult::kEmpty:
      channel.sequence = request.epoch;
      ++channel.next_layer;
      if (result == apk::SubmitResult::kEmpty) publish_done(channel);
      return true;
    case apk::SubmitResult::kBusy:
    case apk::SubmitResult::kFault:
      break;
  }
  // The slot of a channel that is not busy is free.
  return fault(channel, fmt::format("the scheduler refused layer {}: {}", channel.next_layer,
                                    result == apk::SubmitResult::kBusy
                                        ? "slot busy"
                                        : apk::operation_fault_name(agent.fault())));
}

Result<bool> MoeInbox::read_decode_rows(const Channel& channel, uint32_t count) {
  const transport::MoeBufferLayout& layout = plan_.layout;
  const uint32_t stamp =
      transport::operation_epoch(channel.epoch, channel.next_layer, layout.config().layer_count);
  uint64_t sum = 0;
  for (int e = 0; e < layout.local_experts(); ++e) {
    const WordValue counter = unpack(window_->load(layout.decode_counter(channel.microbatch, e)));
    if (counter.epoch != stamp) continue;
    if (counter.value > static_cast<uint32_t>(layout.decode_capacity())) {
      return fault(channel, fmt::format("expert {} has {} rows of at most {}", e, counter.value,
                                        layout.decode_capacity()));
    }
    rows_[static_cast<size_t>(e)] = counter.value;
    sum += counter.value;
  }
  if (sum == count) return true;
  // The group has begun anew meanwhile: its rows took the places of these.
  if (iteration_word(channel).epoch != channel.epoch) return false;
  return fault(channel, fmt::format("layer {}: the participants announced {} rows, the experts' "
                                    "counters hold {}",
                                    channel.next_layer, count, sum));
}

Result<void> MoeInbox::read_prefill_rows(const Channel& channel, uint32_t tokens) {
  if (tokens == 0) return {};  // no lists were sent
  const transport::MoeBufferLayout& layout = plan_.layout;
  window_->get(rows_.data(), layout.prefill_expert_rows(channel.microbatch, channel.sender),
               rows_.size() * sizeof(uint32_t));
  uint32_t entries = 0;
  window_->get(&entries,
               layout.prefill_token_offsets(channel.microbatch, channel.sender) +
                   size_t{tokens} * sizeof(uint32_t),
               sizeof(entries));
  uint64_t sum = 0, pages = 0;
  const auto page_rows = static_cast<uint32_t>(layout.config().prefill_page_rows);
  for (const uint32_t rows : rows_) {
    sum += rows;
    pages += apk::ceil_div(rows, page_rows);
  }
  if (sum == entries && sum >= tokens && pages <= static_cast<uint64_t>(layout.prefill_pages())) {
    return {};
  }
  return fault(
      channel,
      fmt::format("layer {}: {} tokens with {} list entries, {} rows on {} of at most {} "
                  "pages",
                  channel.next_layer, tokens, entries, sum, pages, layout.prefill_pages()));
}

void MoeInbox::finish(const apk::TileDescriptor& tile, uint32_t row_blocks) {
  Channel& channel = *by_slot_[phase_index(tile.phase)][tile.slot];
  if (tile.phase == Phase::kDecode) {
    decode_row_blocks_.fetch_add(row_blocks, std::memory_order_relaxed);
  }
  publish_done(channel);
}

void MoeInbox::publish_done(Channel& channel) {
  const uint32_t p = phase_index(channel.phase);
  finished_[p].fetch_add(1, std::memory_order_relaxed);
  open_by_phase_[p].fetch_sub(1, std::memory_order_relaxed);
  window_->signal(plan_.layout.done_word(channel.index), pack(channel.done),
                  transport::kMoeDoneBell);
  channel.busy.store(0, std::memory_order_release);
  open_.fetch_sub(1, std::memory_order_release);
}

void MoeInbox::add_statistics(MoeStatistics* statistics) const {
  const auto get = [](const std::atomic<uint64_t>& x) { return x.load(std::memory_order_relaxed); };
  statistics->prefill_operations = get(finished_[phase_index(Phase::kPrefill)]);
  statistics->decode_operations = get(finished_[phase_index(Phase::kDecode)]);
  // Not open_: whoever has seen the last done word must not find its operation still open here.
  statistics->open_operations = get(open_by_phase_[0]) + get(open_by_phase_[1]);
  statistics->waits_timed_out = get(waits_timed_out_);
  const uint64_t decode = statistics->decode_operations;
  statistics->x_moe_decode_mean =
      decode == 0 ? 0.0
                  : static_cast<double>(get(decode_row_blocks_)) / static_cast<double>(decode);
}

Error MoeInbox::fault(const Channel& channel, const std::string& what) const {
  return make_error(ErrorCode::kInternal, "{}: {} group {}, microbatch {}: {}", name_,
                    apk::phase_name(channel.phase), channel.sender, channel.microbatch, what);
}

}  // namespace expertplex::cpu
