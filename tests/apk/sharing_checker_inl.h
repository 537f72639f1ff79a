// The checker of sharing_model.h: what must hold, and which accesses need not be interleaved.
#pragma once

#include <algorithm>

namespace expertplex::apk {

template <typename Mem>
std::string SharingModel<Mem>::fiber_name(int fiber) const {
  const Role& role = roles_[fiber];
  if (role.kind == Kind::kAgent) return "agent";
  if (role.kind == Kind::kSender) return "sender";
  if (role.kind == Kind::kClaimer) return "claimer of cluster " + std::to_string(role.cluster);
  return "cluster " + std::to_string(role.cluster) + " member " + std::to_string(role.member) +
         (role.pipeline == PipelineRole::kResident ? " resident" : "");
}

template <typename Mem>
bool SharingModel<Mem>::complete() const {
  for (uint32_t p = 0; p < kPhaseCount; ++p) {
    const uint32_t last = epochs(static_cast<Phase>(p));
    if (words_->done_word[p] != last || ghost_.finished[p] != last) return false;
    if (last == 0) continue;
    const uint32_t all = (1u << operation(static_cast<Phase>(p)).tiles()) - 1;
    if (ghost_.claimed[p] != all || ghost_.written[p][0] != all) return false;
  }
  return ghost_.parked == 0 && ghost_.deciders <= 1;
}

template <typename Mem>
bool SharingModel<Mem>::is_local(const Explorer& explorer, const void* word, Access access) const {
  if (config_.interleave_all) return false;
  if (!has_sender() && (word == &words_->done_word[0] || word == &words_->done_word[1]))
    return true;
  if (const uint32_t commits = commits_of(word); commits > 0) {
    // The one who completes a counter sets it back, with all others through.
    return access == Access::kStore || commits == 1;
  }
  return access == Access::kLoad && is_settled(explorer, word);
}

template <typename Mem>
bool SharingModel<Mem>::is_settled(const Explorer& explorer, const void* word) const {
  const StorageLayout layout(limits_);
  const SharedState& shared = *layout.shared(base_);
  if (word == &shared.abort_word) return true;
  const bool decides = ghost_.decider == static_cast<uint32_t>(explorer.current_fiber()) + 1;
  for (uint32_t c = 0; decides && c < config_.clusters; ++c) {
    if (word == &layout.cluster(base_, c)->preempt_word) return true;  // nobody else writes it
  }
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const uint32_t p = phase_index(phase);
    const uint32_t last = epochs(phase);
    if (word == &words_->ready_word[p]) {
      // An agent of its own polls nothing else in the end.
      const bool last_polled = !config_.agent_is_role && (p == 1 || config_.decode_rows == 0);
      return words_->ready_word[p] == last && !last_polled;
    }
    if (ghost_.submitted[p] != last) continue;  // its words will be written again
    const SlotView slot = layout.slot(base_, phase, 0);
    const bool gone = slot.words->finished == last;
    if (word == &slot.words->finished) return gone;
    if (word == &words_->offer_word) {
      if (p == 1) return true;
      continue;
    }
    if (word == &shared.ready_window[p]) return gone && shared.ready_window[p] == 0;
    if (word == &slot.words->down_progress) {
      return config_.down_scan_window >= 2 * operation(phase).rows + 1;  // the cursor stays
    }
    const bool is_claim =
        word == &slot.words->gate_up_claim || word == &slot.words->reduce_claim ||
        (word >= slot.down_claim && word < slot.down_claim + limits_.row_blocks[p]);
    if (!is_claim) continue;
    const uint64_t value = *static_cast<const uint64_t*>(word);
    return claim_epoch(value) == last && claim_remaining(value) == 0 &&
           !explorer.others_about_to_write(word);
  }
  return false;
}

template <typename Mem>
uint32_t SharingModel<Mem>::commits_of(const void* word) const {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Operation op = operation(phase);
    const SlotView slot = StorageLayout(limits_).slot(base_, phase, 0);
    const uint32_t blocks = limits_.row_blocks[phase_index(phase)];
    if (word == &slot.words->down_committed) return op.rows * op.columns * config_.members;
    if (word == &slot.words->reduce_committed) return op.tokens * config_.members;
    if (word >= slot.gate_up_committed && word < slot.gate_up_committed + blocks) {
      return op.columns * config_.members;
    }
  }
  return 0;
}

template <typename Mem>
bool SharingModel<Mem>::decode_claimable() const {
  const StorageLayout layout(limits_);
  if (layout.shared(base_)->ready_window[phase_index(Phase::kDecode)] == 0) return false;
  const SlotView slot = layout.slot(base_, Phase::kDecode, 0);
  if (claim_remaining(slot.words->gate_up_claim) > 0) return true;
  for (uint32_t b = 0; b < config_.decode_rows; ++b) {
    if (claim_remaining(slot.down_claim[b]) > 0) return true;
  }
  return false;
}

template <typename Mem>
void SharingModel<Mem>::after_step(Explorer&) {
  if (decode_claimable()) return;
  ghost_.saw_empty |= ghost_.in_next;
  for (uint32_t c = 0; c < config_.clusters; ++c) {
    for (uint32_t m = 0; m < config_.members; ++m) {
      if (!(ghost_.decode_in_hand >> (c * 2 + m) & 1)) ghost_.old_k_blocks[c][m] = 0;
    }
  }
}

template <typename Mem>
void SharingModel<Mem>::on_write(const void* word, uint64_t value) {
  const StorageLayout layout(limits_);
  for (uint32_t c = 0; c < config_.clusters; ++c) {
    if (word != &layout.cluster(base_, c)->preempt_word) continue;
    const bool decode = unpack_preempt_word(value).decision.main_phase == Phase::kDecode;
    ghost_.decode_visible = (ghost_.decode_visible & ~(1u << c)) | uint32_t{decode} << c;
    ghost_.old_claims[c] = 0;
    for (uint32_t m = 0; m < config_.members; ++m) {
      ghost_.old_tiles[c][m] = ghost_.old_k_blocks[c][m] = 0;
    }
  }
}

template <typename Mem>
uint32_t SharingModel<Mem>::bit_of(const Operation& op, const TileDescriptor& tile) {
  const uint32_t half = op.rows * op.columns;
  if (tile.kind == TileKind::kReduce) return 2 * half + tile.row_block;
  const uint32_t index = tile.row_block * op.columns + tile.column_tile;
  return tile.kind == TileKind::kGateUp ? index : half + index;
}

template <typename Mem>
void SharingModel<Mem>::note_claim(const Place& place, const TileDescriptor& tile) {
  const uint32_t c = place.role.cluster;
  const uint32_t p = phase_index(tile.phase);
  const uint32_t bit = 1u << bit_of(operation(tile.phase), tile);
  require(!(ghost_.claimed[p] & bit), "a tile was claimed twice");
  ghost_.claimed[p] |= bit;
  if (place.role.pipeline == PipelineRole::kResident) {
    require(tile.phase == Phase::kDecode, "prefill in the resident pipeline");
    return;
  }
  if (tile.phase == Phase::kDecode) {
    for (uint32_t m = 0; m < config_.members; ++m) ghost_.decode_in_hand |= 1u << (c * 2 + m);
    return;
  }
  if (tile.borrowed) {
    ++borrowed_seen_;
    require(ghost_.saw_empty >> explorer().current_fiber() & 1,
            "lent to prefill although decode had a claimable tile all the time");
    return;
  }
  if (!(ghost_.decode_visible >> c & 1)) return;
  const uint32_t n = ++ghost_.old_claims[c];
  require(!config_.policy.preemption_enabled || n <= bound().claims,
          "more old-phase claims than the preemption bound");
  most_.claims = std::max(most_.claims, n);
}

template <typename Mem>
void SharingModel<Mem>::note_k_block(const Place& place) {
  const uint32_t c = place.role.cluster;
  if (!(ghost_.decode_visible >> c & 1)) return;
  const uint32_t n = ++ghost_.old_k_blocks[c][place.role.member];
  require(config_.policy.mode != SwitchMode::kParking || n <= bound().k_blocks,
          "more k-blocks of the old phase than the preemption bound");
  most_.k_blocks = std::max(most_.k_blocks, n);
}

template <typename Mem>
void SharingModel<Mem>::note_begin(const Place& place, const TileDescriptor& tile) {
  const uint32_t c = place.role.cluster;
  const uint32_t m = place.role.member;
  if (place.role.pipeline == PipelineRole::kResident) return;
  if (tile.phase == Phase::kDecode) {
    ghost_.decode_in_hand &= ~(1u << (c * 2 + m));
    ghost_.old_k_blocks[c][m] = 0;
    return;
  }
  if (tile.borrowed || !(ghost_.decode_visible >> c & 1)) return;
  const uint32_t n = ++ghost_.old_tiles[c][m];
  require(!config_.policy.preemption_enabled || n <= bound().tiles,
          "more old-phase tiles begun than the preemption bound");
  most_.tiles = std::max(most_.tiles, n);
}

}  // namespace expertplex::apk
