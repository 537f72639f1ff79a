#include "transport/moe_buffers.h"

#include <algorithm>

#include "base/check.h"

namespace expertplex::transport {
namespace {

constexpr size_t kInstanceAlignment = 64;
constexpr size_t kRegionAlignment = 4096;
constexpr size_t kRowAlignment = 16;

constexpr size_t round_up(size_t x, size_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

Result<void> in_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return make_error(ErrorCode::kInvalidArgument, "MoE buffers: {}: expected {} to {}, got {}",
                    field, low, high, value);
}

// Most pages that `rows` rows over `experts` experts can need, with at most `tokens` on each.
int64_t worst_case_pages(int64_t rows, int64_t experts, int64_t tokens, int64_t page_rows) {
  const int64_t spread = (rows + experts * (page_rows - 1)) / page_rows;
  const int64_t full = experts * ((tokens + page_rows - 1) / page_rows);
  return std::min(spread, full);
}

}  // namespace

int MoeBufferConfig::server_of_expert(int expert) const {
  int server = static_cast<int>(static_cast<int64_t>(expert) * moe_server_count / expert_count);
  while (expert >= first_expert(server + 1)) ++server;
  return server;
}

Result<void> MoeBufferConfig::check() const {
  EXPERTPLEX_TRY(in_range("layer_count", layer_count, 1, 4096));
  EXPERTPLEX_TRY(in_range("expert_count", expert_count, 1, 65535));
  EXPERTPLEX_TRY(in_range("moe_server_count", moe_server_count, 1, std::min(expert_count, 32767)));
  EXPERTPLEX_TRY(in_range("top_k", top_k, 1, expert_count));
  EXPERTPLEX_TRY(
      in_range("dispatch_row_bytes", static_cast<int64_t>(dispatch_row_bytes), 1, 1 << 24));
  EXPERTPLEX_TRY(
      in_range("combine_row_bytes", static_cast<int64_t>(combine_row_bytes), 1, 1 << 24));
  EXPERTPLEX_TRY(in_range("decode_participants", decode_participants, 0, kMaxDecodeParticipants));
  EXPERTPLEX_TRY(in_range("microbatches", microbatches, 1, 16));
  EXPERTPLEX_TRY(in_range("prefill_senders", prefill_senders, 0, 1024));
  if (decode_participants > 0) {
    EXPERTPLEX_TRY(in_range("max_decode_rows", max_decode_rows, 1, 1 << 16));
    EXPERTPLEX_TRY(in_range("decode slots (participants * max_decode_rows * top_k)",
                            int64_t{decode_participants} * max_decode_rows * top_k, 1, 1 << 30));
  }
  if (prefill_senders > 0) {
    EXPERTPLEX_TRY(in_range("max_prefill_tokens", max_prefill_tokens, 1, 1 << 20));
    EXPERTPLEX_TRY(in_range("prefill_page_rows", prefill_page_rows, 1, 4096));
    EXPERTPLEX_TRY(
        in_range("prefill rows (max_prefill_tokens * top_k + padding)",
                 int64_t{max_prefill_tokens} * top_k + int64_t{expert_count} * prefill_page_rows, 1,
                 1 << 30));
  }
  if (decode_participants == 0 && prefill_senders == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "MoE buffers: neither decode participants nor prefill senders");
  }
  return {};
}

Result<MoeBufferLayout> MoeBufferLayout::plan(const MoeBufferConfig& config, int server) {
  EXPERTPLEX_TRY(config.check());
  EXPERTPLEX_TRY(in_range("server", server, 0, config.moe_server_count - 1));
  MoeBufferLayout layout;
  layout.config_ = config;
  layout.server_ = server;
  layout.dispatch_stride_ = round_up(config.dispatch_row_bytes, kRowAlignment);
  layout.combine_stride_ = round_up(config.combine_row_bytes, kRowAlignment);

  const int experts = config.local_experts(server);
  const size_t tokens = config.prefill_senders > 0 ? config.max_prefill_tokens : 0;
  layout.prefill_entries_ = static_cast<int>(tokens) * std::min(config.top_k, experts);
  if (config.prefill_senders > 0) {
    layout.prefill_pages_ = static_cast<int>(worst_case_pages(
        layout.prefill_entries_, experts, config.max_prefill_tokens, config.prefill_page_rows));
  }
  const size_t microbatches = config.microbatches;
  const size_t decode = config.decode_participants > 0 ? microbatches * experts : 0;
  const size_t senders = microbatches * config.prefill_senders;
  const size_t participants = std::max(1, config.decode_participants);
  using enum MoeRegion;
  layout.add(kIterationWords, "iteration words", config.channel_count(), 1, 8);
  layout.add(kReadyWords, "ready words",
             static_cast<size_t>(config.channel_count()) * config.layer_count, participants, 8);
  layout.add(kDoneWords, "done words", config.channel_count(), 1, 8);
  layout.add(kDecodeCounters, "decode counters", decode, 1, 8);
  layout.add(kDecodeSlots, "decode slots", decode, layout.decode_capacity(), 4);
  layout.add(kDecodeRows, "decode rows", decode, layout.decode_capacity(), layout.dispatch_stride_);
  layout.add(kDecodeCombine, "decode combine rows", decode > 0 ? microbatches : 0,
             layout.decode_slots(), layout.combine_stride_);
  layout.add(kPrefillExpertRows, "prefill expert rows", senders, experts, 4);
  layout.add(kPrefillTokenOffsets, "prefill token offsets", senders, tokens + 1, 4);
  layout.add(kPrefillTokenEntries, "prefill token entries", senders, layout.prefill_entries_,
             sizeof(PrefillTokenEntry));
  layout.add(kPrefillRows, "prefill rows", senders, layout.prefill_rows(), layout.dispatch_stride_);
  layout.add(kPrefillCombine, "prefill combine rows", senders, tokens, layout.combine_stride_);
  return layout;
}

void MoeBufferLayout::add(MoeRegion kind, const char* name, size_t instances, size_t elements,
                          size_t element_bytes) {
  Region& region = regions_[static_cast<size_t>(kind)];
  region = {kind, name, instances, elements, element_bytes};
  region.instance_stride = round_up(elements * element_bytes, kInstanceAlignment);
  region.offset = total_bytes_;
  region.bytes = round_up(instances * region.instance_stride, kRegionAlignment);
  total_bytes_ += region.bytes;
}

size_t MoeBufferLayout::at(MoeRegion kind, int instance, int element) const {
  const Region& region = regions_[static_cast<size_t>(kind)];
  EXPERTPLEX_CHECK(instance >= 0 && static_cast<size_t>(instance) < region.instances &&
                       element >= 0 && static_cast<size_t>(element) < region.elements,
                   "{}: instance {} of {}, element {} of {}", region.name, instance,
                   region.instances, element, region.elements);
  return region.offset + static_cast<size_t>(instance) * region.instance_stride +
         static_cast<size_t>(element) * region.element_bytes;
}

std::string MoeBufferLayout::describe() const {
  std::string text = fmt::format("MoE server {} of {}: experts [{}, {}), {} bytes in all\n",
                                 server_, config_.moe_server_count, config_.first_expert(server_),
                                 config_.first_expert(server_ + 1), total_bytes_);
  for (const Region& region : regions_) {
    if (region.bytes == 0) continue;
    text += fmt::format("  {:<22} {:>6} x {:>8} x {:>6} B = {:>13} B at {}\n", region.name,
                        region.instances, region.elements, region.element_bytes, region.bytes,
                        region.offset);
  }
  return text;
}

size_t MoeBufferLayout::iteration_word(int channel) const {
  return at(MoeRegion::kIterationWords, channel, 0);
}
size_t MoeBufferLayout::ready_word(int channel, int layer, int participant) const {
  return at(MoeRegion::kReadyWords, channel * config_.layer_count + layer, participant);
}
size_t MoeBufferLayout::done_word(int channel) const {
  return at(MoeRegion::kDoneWords, channel, 0);
}

size_t MoeBufferLayout::decode_counter(int microbatch, int local_expert) const {
  return at(MoeRegion::kDecodeCounters, microbatch * local_experts() + local_expert, 0);
}
size_t MoeBufferLayout::decode_slot(int microbatch, int local_expert, int row) const {
  return at(MoeRegion::kDecodeSlots, microbatch * local_experts() + local_expert, row);
}
size_t MoeBufferLayout::decode_row(int microbatch, int local_expert, int row) const {
  return at(MoeRegion::kDecodeRows, microbatch * local_experts() + local_expert, row);
}
size_t MoeBufferLayout::decode_combine_row(int microbatch, int slot) const {
  return at(MoeRegion::kDecodeCombine, microbatch, slot);
}

size_t MoeBufferLayout::prefill_expert_rows(int microbatch, int sender) const {
  return at(MoeRegion::kPrefillExpertRows, microbatch * config_.prefill_senders + sender, 0);
}
size_t MoeBufferLayout::prefill_token_offsets(int microbatch, int sender) const {
  return at(MoeRegion::kPrefillTokenOffsets, microbatch * config_.prefill_senders + sender, 0);
}
size_t MoeBufferLayout::prefill_token_entries(int microbatch, int sender) const {
  return at(MoeRegion::kPrefillTokenEntries, microbatch * config_.prefill_senders + sender, 0);
}
size_t MoeBufferLayout::prefill_row(int microbatch, int sender, int row) const {
  return at(MoeRegion::kPrefillRows, microbatch * config_.prefill_senders + sender, row);
}
size_t MoeBufferLayout::prefill_combine_row(int microbatch, int sender, int token) const {
  return at(MoeRegion::kPrefillCombine, microbatch * config_.prefill_senders + sender, token);
}

}  // namespace expertplex::transport
