// The program of sharing_model.h: agent, sender, claimers and members.
#pragma once

#include <algorithm>
#include <cstring>

namespace expertplex::apk {

namespace detail {
inline uint32_t pipeline_index(PipelineRole role) { return static_cast<uint32_t>(role); }
}  // namespace detail

template <typename Mem>
void SharingModel<Mem>::build(Explorer& explorer) {
  limits_.clusters = config_.clusters;
  limits_.slots[0] = limits_.slots[1] = 1;
  limits_.experts = std::max(config_.prefill_rows, config_.decode_rows);
  limits_.row_blocks[0] = std::max(1u, config_.prefill_rows);
  limits_.row_blocks[1] = std::max(1u, config_.decode_rows);
  base_ = explorer.arena();
  const size_t bytes = storage_bytes(limits_);
  EXPERTPLEX_CHECK(bytes + sizeof(Words) <= kArenaBytes);
  initialise_storage(limits_, base_);
  words_ = reinterpret_cast<Words*>(explorer.arena() + bytes);

  const StorageLayout layout(limits_);
  const int agent_region = explorer.define_region("the agent's private data", true);
  explorer.add_range(agent_region, &layout.shared(base_)->agent, sizeof(AgentPrivate));
  explorer.add_range(agent_region, words_->submitted, sizeof(words_->submitted));
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const uint32_t p = phase_index(phase);
    const Operation op = operation(phase);
    OperationTemplate shape;
    shape.phase = phase;
    shape.pipeline = phase == Phase::kDecode ? config_.decode_pipeline : PipelineRole::kMain;
    shape.experts = std::max(1u, op.rows);  // every row goes to an expert of its own
    shape.hidden = op.down ? op.columns : 0;
    shape.intermediate = op.columns;
    shape.gate_up = shape.down = {1, 1};
    shape.reduce_tokens = op.tokens > 0 ? 1 : 0;
    shape.commits_per_tile = config_.members;
    shape.announced = config_.announced && phase == Phase::kDecode;
    shape.down_scan_window = config_.down_scan_window;
    shape.max_row_blocks = std::max(1u, op.rows);
    shape.max_tokens = op.tokens;
    const OperationFault fault = install_template(limits_, base_, shape);
    EXPERTPLEX_CHECK(fault == OperationFault::kNone, "{}", operation_fault_name(fault));
    const SlotView slot = layout.slot(base_, phase, 0);
    const int region = explorer.define_region(std::string(phase_name(phase)) + " operation");
    explorer.add_range(region, slot.fields, sizeof(OperationFields));
    explorer.add_range(region, slot.blocks, sizeof(RowBlock) * limits_.row_blocks[p]);
    EXPERTPLEX_CHECK(op.tiles() <= kMaxModelTiles);
    for (uint32_t t = 0; t < op.tiles(); ++t) {
      for (uint32_t m = 0; m < config_.members; ++m) {
        outputs_[p][t][m] =
            explorer.define_region("output " + std::to_string(t) + " of " + phase_name(phase));
      }
    }
  }
  const uint32_t pipelines = config_.decode_pipeline == PipelineRole::kResident ? 2 : 1;
  for (uint32_t c = 0; hands_on() && c < config_.clusters; ++c) {
    for (uint32_t r = 0; r < pipelines; ++r) {
      for (uint32_t m = first_told(); m < config_.members; ++m) {
        const int region = explorer.define_region("handoff message");
        explorer.add_range(region, &words_->rings[c][r][m].slots[0].message,
                           sizeof(TileDescriptor));
      }
    }
  }
  rows_region_ = explorer.define_region("the senders' rows");
  words_->ready_word[0] = 1;
  words_->ready_word[1] = has_sender() ? 0 : 1;
}

// What commutes with all that others may still do (Model::is_local).
// Words that nobody will write any more.
// For a commit counter: how many commits complete it; else 0.
// The moment at which a decision becomes visible to a cluster: its bound starts to count.
template <typename Mem>
void SharingModel<Mem>::agent_round(AgentRole<Mem>& agent, uint64_t context) {
  const bool had_prefill =
      operation(Phase::kPrefill).rows == 0 || Mem::read(&words_->submitted[0]) != 0;
  context = combine_hash(context, had_prefill);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const uint32_t p = phase_index(phase);
    if (operation(phase).rows == 0) continue;
    context = combine_hash(context, p);
    explorer().checkpoint(context);
    const uint32_t ready = Mem::load(&words_->ready_word[p], Acquire{}, SystemScope{});
    // A single decode operation needs no sender: the agent sees it late enough, and at any time.
    if (!has_sender() && phase == Phase::kDecode && !had_prefill) continue;
    if (ready == Mem::read(&words_->submitted[p])) continue;
    const uint32_t rows[] = {1, 1, 1, 1, 1, 1, 1, 1};
    OperationRequest request;
    request.epoch = ready;
    request.tokens = operation(phase).tokens;
    request.rows_per_expert = rows;
    if (config_.twin == Twin::kSameEpochAgain && ready > 1) {
      const SlotView slot = StorageLayout(limits_).slot(base_, phase, 0);
      Mem::store(&slot.words->finished, ready, Relaxed{}, DeviceScope{});
      Mem::write(&StorageLayout(limits_).shared(base_)->agent.submitted[p][0], ready);
      request.epoch = 1;
    }
    if (!config_.announced && ghost_.finished[p] == ready - 1) {
      ghost_.claimed[p] = ghost_.written[p][0] = ghost_.written[p][1] = 0;
    }
    uint32_t announced = 0;
    if (config_.announced && phase == Phase::kDecode) {
      announced = agent.announce(0, ready, config_.clusters, &words_->offer_word);
    }
    const SubmitResult result = agent.submit(phase, 0, request, announced);
    require(result == SubmitResult::kSubmitted || result == SubmitResult::kBusy,
            "submit was refused");
    if (result != SubmitResult::kSubmitted) continue;
    Mem::write(&words_->submitted[p], ready);
    ghost_.submitted[p] = ready;
  }
  // agent.decide(policy), with a checkpoint wherever little is remembered.
  using Look = typename AgentRole<Mem>::PhaseLook;
  const auto hash_of = [](const Look& look) {
    return uint64_t{look.main} | uint64_t{look.resident} << 1 | uint64_t{look.footprint} << 2;
  };
  explorer().checkpoint(context);
  const Look prefill = agent.look_at(Phase::kPrefill);
  context = combine_hash(context, hash_of(prefill));
  explorer().checkpoint(context);
  const Look decode = agent.look_at(Phase::kDecode);
  const SharingPlan plan = agent.make_plan(config_.policy, prefill, decode, agent.aborted());
  context = combine_hash(context, hash_of(decode));
  explorer().checkpoint(context);
  if (!agent.plan_changed(plan)) return;
  for (uint32_t c = 0; c < config_.clusters; ++c) agent.write_decision(plan, c);
}

template <typename Mem>
void SharingModel<Mem>::run_agent() {
  auto agent = scheduler().try_become_agent();
  ++ghost_.deciders;
  ghost_.decider = static_cast<uint32_t>(explorer().current_fiber()) + 1;
  while (true) {
    explorer().checkpoint(1);
    agent_round(agent, 10);
  }
}

// The decode attention servers: the next operation follows the done word of the one before.
template <typename Mem>
void SharingModel<Mem>::run_sender() {
  const uint32_t p = phase_index(Phase::kDecode);
  for (uint32_t epoch = 1; epoch <= config_.decode_epochs; ++epoch) {
    do {
      explorer().checkpoint(epoch);
    } while (Mem::load(&words_->done_word[p], Acquire{}, SystemScope{}) != epoch - 1);
    explorer().region_write(rows_region_);
    if (config_.announced) ghost_.claimed[p] = ghost_.written[p][0] = ghost_.written[p][1] = 0;
    Mem::store(&words_->ready_word[p], epoch, Release{}, SystemScope{});
  }
}

// ---- members ----

template <typename Mem>
void SharingModel<Mem>::run(int fiber) {
  const Role& role = roles_[fiber];
  if (role.kind == Kind::kAgent) return run_agent();
  if (role.kind == Kind::kSender) return run_sender();
  if (config_.twin == Twin::kMembersDecide) return run_member_alone(role);
  run_member(role);
}

template <typename Mem>
void SharingModel<Mem>::run_member(const Role& role) {
  const uint32_t r = detail::pipeline_index(role.pipeline);
  Ring* rings[kMaxModelMembers] = {};
  const uint32_t told = config_.members - first_told();
  for (uint32_t i = 0; i < told; ++i) {
    rings[i] = &words_->rings[role.cluster][r][first_told() + i];
  }
  uint32_t* taken = words_->taken[role.cluster][r];
  const uint32_t heeded = config_.twin == Twin::kNoCredit ? 0 : told;
  HandoffSender<Mem, kHandoffDepth> sender(rings, told, &taken[first_told()], heeded);
  HandoffReceiver<Mem, kHandoffDepth> receiver(&words_->rings[role.cluster][r][role.member],
                                               &taken[role.member]);
  Place place;
  place.role = role;
  place.pipeline.cluster = role.cluster;
  place.pipeline.role = role.pipeline;
  place.sender = &sender;
  place.receiver = &receiver;
  while (true) {
    const Claim claim = next_claim(place);
    if (claim.status == ClaimStatus::kTile) run_tile(place, claim.tile);
  }
}

// All that a member's future depends on beside the arena, at the places where it is used.
template <typename Mem>
uint64_t SharingModel<Mem>::local_state(const Place& place, uint64_t tag) const {
  uint64_t local = combine_hash(place.context, tag);
  if (config_.announced) local = combine_hash(local, place.announced);
  if (hands_on()) {
    local = combine_hash(local, combine_hash(place.sender->sent(), place.receiver->received()));
    local = combine_hash(local, place.tiles);
  }
  if (!config_.policy.preemption_enabled && place.pipeline.started) {
    local = combine_hash(local, combine_hash(place.pipeline.last_tile.epoch,
                                             phase_index(place.pipeline.last_tile.phase)));
  }
  return local;
}

// The leader asks the scheduler and tells its partner; the partner is told.
template <typename Mem>
Claim SharingModel<Mem>::next_claim(Place& place) {
  Claim claim;
  checkpoint(place, 1);
  if (!asks(place.role)) {
    place.receiver->try_receive(&claim);
    return claim;
  }
  if (config_.agent_is_role) {
    if (auto agent = scheduler().try_become_agent()) {
      require(++ghost_.deciders == 1, "two deciding agents at once");
      ghost_.decider = static_cast<uint32_t>(explorer().current_fiber()) + 1;
      agent_round(agent, local_state(place, 11));
      ghost_.decider = 0;
      --ghost_.deciders;
    }
    checkpoint(place, 2);
  }
  const uint32_t me = 1u << explorer().current_fiber();
  ghost_.in_next |= me;
  ghost_.saw_empty = (ghost_.saw_empty & ~me) | (decode_claimable() ? 0 : me);
  if (config_.announced && place.pipeline.role == config_.decode_pipeline) {
    claim = announced_claim(place);
  }
  if (claim.status != ClaimStatus::kTile) claim = scheduler().next(place.pipeline);
  if (claim.status == ClaimStatus::kTile) note_claim(place, claim.tile);
  ghost_.in_next &= ~me;
  ghost_.saw_empty &= ~me;
  if (claim.status != ClaimStatus::kNothing) hand_on(place, claim);
  return claim;
}

// The tile of its own number that this cluster's pipeline owns of a decode operation that is ready.
template <typename Mem>
Claim SharingModel<Mem>::announced_claim(Place& place) {
  const Announcement a{
      Mem::load(&words_->ready_word[phase_index(Phase::kDecode)], Relaxed{}, SystemScope{}), 0, 0};
  if (a.epoch == place.announced) return {};
  uint32_t clusters = config_.clusters;
  if (place.pipeline.role == PipelineRole::kMain) {
    const uint64_t offer = Mem::load(&words_->offer_word, Relaxed{}, DeviceScope{});
    clusters = offered_clusters(offer, a.epoch);
    if (clusters == kNotOffered) return {};
  }
  place.announced = a.epoch;
  if (place.pipeline.cluster >= clusters) return {};
  const Operation op = operation(Phase::kDecode);
  if (place.pipeline.cluster >= op.rows * op.columns) return {};
  if (config_.twin != Twin::kNoAcquire) {
    Mem::load(&words_->ready_word[phase_index(Phase::kDecode)], Acquire{}, SystemScope{});
  }
  explorer().region_read(rows_region_);
  TileDescriptor tile = announced_tile(a, op.rows);
  const uint32_t expert = place.pipeline.cluster / op.columns;
  const OperationTemplate& shape =
      *StorageLayout(limits_).operation_template(base_, Phase::kDecode, a.slot);
  place_in_expert(shape, expert, {1, expert}, place.pipeline.cluster, &tile);
  return scheduler().note_announced(place.pipeline, tile);
}

template <typename Mem>
void SharingModel<Mem>::hand_on(Place& place, const Claim& claim) {
  if (!hands_on()) return;
  checkpoint(place, combine_hash(3 + static_cast<uint64_t>(claim.status),
                                 hash_bytes(&claim.tile, sizeof(TileDescriptor))));
  const uint64_t mark = explorer().mark();
  while (!place.sender->try_send(claim)) explorer().retry(mark);
}

// At a k-block check: the leader's verdict, known to both members.
template <typename Mem>
Claim SharingModel<Mem>::verdict(Place& place, const TileDescriptor& running) {
  Claim claim;
  if (asks(place.role)) {
    claim = scheduler().preempt(place.pipeline, running);
    if (claim.status == ClaimStatus::kTile) note_claim(place, claim.tile);
    hand_on(place, claim);
  } else {
    const uint64_t mark = explorer().mark();
    while (!place.receiver->try_receive(&claim)) explorer().retry(mark);
  }
  return claim;
}

template <typename Mem>
void SharingModel<Mem>::run_tile(Place& place, const TileDescriptor& tile) {
  const bool computes = place.role.kind == Kind::kMember;
  if (computes) {
    note_begin(place, tile);
    meet_partner(place, tile);
  }
  const bool pauses = place.role.pipeline == PipelineRole::kResident && place.role.member == 0 &&
                      config_.policy.pause != PausePolicy::kNever;
  uint32_t* resident_tiles = &words_->resident_tiles[place.role.cluster];
  if (pauses) Mem::store(resident_tiles, 1u, Relaxed{}, CtaScope{});
  if (tile.phase == Phase::kPrefill) run_k_blocks(place, tile);
  if (!computes) return;
  write_outputs(place, tile);
  if (pauses) Mem::store(resident_tiles, 0u, Relaxed{}, CtaScope{});
  commit(place, tile);
}

template <typename Mem>
void SharingModel<Mem>::run_k_blocks(Place& place, const TileDescriptor& tile) {
  const uint32_t c = place.role.cluster;
  for (uint32_t k = 0; k < config_.k_blocks; ++k) {
    if (config_.policy.pause != PausePolicy::kNever) {
      const uint64_t mark = explorer().mark();
      while (Mem::load(&words_->resident_tiles[c], Relaxed{}, CtaScope{}) != 0 &&
             loads_in_flight(scheduler().pause(c), 4) == 0) {
        explorer().retry(mark);
      }
    }
    if (place.role.kind == Kind::kMember) note_k_block(place);
    if (config_.policy.mode != SwitchMode::kParking || k + 1 == config_.k_blocks) continue;
    const Claim claim = verdict(place, tile);
    if (claim.status == ClaimStatus::kTile) run_parked(place, tile, claim, k);
  }
}

// Runs decode tiles until the parked tile comes back.
template <typename Mem>
void SharingModel<Mem>::run_parked(Place& place, const TileDescriptor& tile, Claim claim,
                                   uint32_t k) {
  const uint32_t bit = 1u << (place.role.cluster * 2 + place.role.member);
  const bool computes = place.role.kind == Kind::kMember;
  if (computes) ghost_.parked |= bit;
  ++parked_seen_;
  place.context = combine_hash(k + 1, hash_bytes(&tile, sizeof(tile)));
  while (claim.status != ClaimStatus::kResume) {
    if (claim.status == ClaimStatus::kTile) run_tile(place, claim.tile);
    claim = next_claim(place);
    require(!asks(place.role) || claim.status != ClaimStatus::kNothing,
            "a parked pipeline got neither a tile nor its own back");
  }
  place.context = 0;
  require(claim.tile == tile, "resumed another tile than was parked");
  if (computes) ghost_.parked &= ~bit;
}

// TMA multicast: both members must be on the same tile, or each waits for data that never comes.
template <typename Mem>
void SharingModel<Mem>::meet_partner(Place& place, const TileDescriptor& tile) {
  ++place.tiles;
  if (config_.members == 1) return;
  const uint32_t c = place.role.cluster;
  const uint32_t r = detail::pipeline_index(place.role.pipeline);
  const uint32_t m = place.role.member;
  const uint16_t code = static_cast<uint16_t>(1 + phase_index(tile.phase) * 64 +
                                              bit_of(operation(tile.phase), tile) * 2);
  const uint32_t parity = place.tiles % 2;
  ghost_.tile_at[c][r][m][parity] = code;
  Mem::store(&words_->arrived[c][r][m], place.tiles, Release{}, ClusterScope{});
  // The partner may be one tile ahead already, but not before it has seen us here: two are kept.
  const uint64_t mark = explorer().mark();
  uint32_t there = Mem::load(&words_->arrived[c][r][1 - m], Acquire{}, ClusterScope{});
  for (; there < place.tiles;
       there = Mem::load(&words_->arrived[c][r][1 - m], Acquire{}, ClusterScope{})) {
    explorer().retry(mark);
  }
  require(ghost_.tile_at[c][r][1 - m][parity] == code,
          "the members of a cluster are on different tiles");
}

template <typename Mem>
void SharingModel<Mem>::write_outputs(Place& place, const TileDescriptor& tile) {
  const Operation op = operation(tile.phase);
  const uint32_t p = phase_index(tile.phase);
  const uint32_t half = op.rows * op.columns;
  uint32_t needed = 0;  // bits of the tiles that this one reads
  if (tile.kind == TileKind::kDown) {
    needed = ((1u << op.columns) - 1) << (tile.row_block * op.columns);
  } else if (tile.kind == TileKind::kReduce) {
    needed = ((1u << half) - 1) << half;
  }
  for (uint32_t t = 0; t < op.tiles(); ++t) {
    if (!(needed >> t & 1)) continue;
    for (uint32_t m = 0; m < config_.members; ++m) {
      require(ghost_.written[p][m] >> t & 1, "runs before the tiles that it depends on");
      explorer().region_read(output_region(tile, t, m));
    }
  }
  const uint32_t m = place.role.member;
  const uint32_t index = bit_of(op, tile);
  ghost_.written[p][m] |= 1u << index;
  explorer().region_write(output_region(tile, index, m));
}

template <typename Mem>
void SharingModel<Mem>::commit(Place& place, const TileDescriptor& tile) {
  (void)place;
  if (config_.twin == Twin::kNoDependency && tile.kind == TileKind::kGateUp) {
    const SlotView slot = StorageLayout(limits_).slot(base_, tile.phase, 0);
    if (Mem::fetch_add(&slot.gate_up_committed[tile.row_block], 1u, AcquireRelease{},
                       DeviceScope{}) == 0) {
      detail::open_claim<Mem>(&slot.down_claim[tile.row_block], tile.epoch,
                              slot.shape->down_columns());
    }
    return;
  }
  if (scheduler().commit(tile)) finish(tile);
}

// Exactly one committer comes here per operation, and it must see everything.
template <typename Mem>
void SharingModel<Mem>::finish(const TileDescriptor& tile) {
  const uint32_t p = phase_index(tile.phase);
  const Operation op = operation(tile.phase);
  const uint32_t all = (1u << op.tiles()) - 1;
  ++ghost_.finished[p];
  for (uint32_t m = 0; m < config_.members; ++m) {
    require(ghost_.written[p][m] == all, "finished before all tiles were committed");
    for (uint32_t t = 0; t < op.tiles(); ++t) explorer().region_read(output_region(tile, t, m));
  }
  const uint32_t done = Mem::load(&words_->done_word[p], Relaxed{}, SystemScope{}) + 1;
  // Who runs announced tiles has acquired nothing from the agent, and may read no fields.
  if (config_.twin != Twin::kLateLook && !(config_.announced && tile.phase == Phase::kDecode)) {
    require(scheduler().operation(tile).epoch == tile.epoch, "not the operation of the tile");
  }
  scheduler().retire(tile);
  Mem::store(&words_->done_word[p], done, Release{}, SystemScope{});
  if (config_.twin == Twin::kLateLook) scheduler().operation(tile);
}

// ---- the broken twin of every post-mortem ----

// Each member reads the cluster's word and picks the next tile of that phase by its own count.
template <typename Mem>
void SharingModel<Mem>::run_member_alone(const Role& role) {
  Place place;
  place.role = role;
  uint32_t next_tile[kPhaseCount] = {0, 0};
  while (true) {
    explorer().checkpoint(combine_hash(next_tile[0], next_tile[1]));
    const uint64_t word =
        Mem::load(&StorageLayout(limits_).cluster(base_, role.cluster)->preempt_word, Relaxed{},
                  DeviceScope{});
    const Phase phase = unpack_preempt_word(word).decision.main_phase;
    const uint32_t p = phase_index(phase);
    if (next_tile[p] == operation(phase).rows) continue;
    TileDescriptor tile;
    tile.phase = phase;
    tile.row_block = next_tile[p]++;
    meet_partner(place, tile);
  }
}

}  // namespace expertplex::apk
