// The deciding agent: the one place where it is decided which phase runs where (paper, "APK instead
// propagates one cooperative decision"; DESIGN section 2, "Decision").
//
// It is a role, held by one at a time. On the GPU a spare warp of CTA 0 takes it once and keeps it,
// polling the ready words all the time. On a CPU there is no extra thread: every worker tries to
// take it at its check points and while idle, does one round (poll ready words, submit what is
// ready, decide) and gives it back. Nobody ever waits for it: who finds it taken goes on, because
// somebody is deciding.
//
//   if (AgentRole<Mem> agent = scheduler.try_become_agent()) {
//     ... agent.submit(...) for every ready word that has arrived ...
//     agent.decide(policy);
//   }
//
// Thread rules: an AgentRole is used by the thread that got it.
#pragma once

#include <cstdint>

#include "apk/announcement.h"
#include "apk/policy.h"
#include "apk/preempt_word.h"
#include "apk/scheduler_storage.h"
#include "base/host_device.h"

namespace expertplex::apk {

enum class SubmitResult : uint8_t {
  kSubmitted,  // in flight; a commit will say that it finished
  kEmpty,      // no rows and nothing to reduce: done already, the caller publishes the done word
  kBusy,       // the slot's operation before is not retired yet: submit again later
  kFault,      // refused, see AgentRole::fault(): the request does not fit its template
};

// What one decision comes to: clusters [0, decode_clusters) follow `decode_side`, the others
// `prefill_side`.
struct SharingPlan {
  uint32_t decode_clusters = 0;
  Decision decode_side;
  Decision prefill_side;
};

template <typename Mem>
class AgentRole {
 public:
  EXPERTPLEX_HOST_DEVICE AgentRole(const SchedulerLimits& limits, void* base, bool held)
      : limits_(limits), layout_(limits), base_(base), held_(held) {}
  EXPERTPLEX_HOST_DEVICE ~AgentRole() { release(); }
  AgentRole(const AgentRole&) = delete;
  AgentRole& operator=(const AgentRole&) = delete;

  EXPERTPLEX_HOST_DEVICE explicit operator bool() const { return held_; }

  // Gives the role back (the destructor does, too).
  EXPERTPLEX_HOST_DEVICE void release() {
    if (!held_) return;
    held_ = false;
    Mem::store(&shared()->agent_word, uint32_t{0}, Release{}, DeviceScope{});
  }

  // For how many clusters a decode operation that is ready is announced, before submit, which is to
  // be told the result; offers the slot's next one to the first `clusters` (announcement.h). 0
  // where it cannot be announced: its template does not want it, or its slot is busy.
  EXPERTPLEX_HOST_DEVICE uint32_t announce(uint32_t slot_index, uint32_t epoch, uint32_t clusters,
                                           uint64_t* offer_word) {
    const SlotView slot = layout_.slot(base_, Phase::kDecode, slot_index);
    if (!slot.shape->announced || is_busy(Phase::kDecode, slot_index)) return 0;
    refresh_window(Phase::kDecode);
    // From here on it is in flight: it may finish before it is submitted.
    Mem::write(&shared()->agent.submitted[1][slot_index], epoch);
    if (slot.shape->pipeline == PipelineRole::kResident) return limits_.clusters;
    const uint64_t before = Mem::load(offer_word, Relaxed{}, DeviceScope{});
    const uint64_t offer = next_offer(before, epoch, clusters);
    Mem::store(offer_word, offer, Relaxed{}, DeviceScope{});
    return offered_clusters(offer, epoch);
  }

  // Makes a ready operation visible. The caller has acquired the ready words of all its senders.
  EXPERTPLEX_HOST_DEVICE SubmitResult submit(Phase phase, uint32_t slot_index,
                                             const OperationRequest& request,
                                             uint32_t announced = 0) {
    const uint32_t p = phase_index(phase);
    if (p >= kPhaseCount || slot_index >= limits_.slots[p])
      return fail(OperationFault::kNoSuchSlot);
    const SlotView slot = layout_.slot(base_, phase, slot_index);
    uint32_t* submitted = &shared()->agent.submitted[p][slot_index];
    if (announced == 0) {
      if (is_busy(phase, slot_index)) return SubmitResult::kBusy;
      if (request.epoch == 0 || request.epoch == Mem::read(submitted)) {
        return fail(OperationFault::kBadEpoch);
      }
    }
    if (slot.shape->experts == 0) return fail(OperationFault::kNoSuchSlot);  // no template
    fault_ = instantiate_operation<Mem>(*slot.shape, request, slot.fields, slot.blocks);
    if (fault_ != OperationFault::kNone) return SubmitResult::kFault;
    if (announced == 0) {
      refresh_window(phase);  // its finished predecessor may still stand there
      Mem::write(submitted, request.epoch);
    }
    if (Mem::read(slot.fields).tiles() == 0) {
      Mem::store(&slot.words->finished, request.epoch, Relaxed{}, DeviceScope{});
      return SubmitResult::kEmpty;
    }
    Mem::count(&shared()->submitted[p], 1);
    publish_operation<Mem>(slot, announced);
    push_waiting(p, pack_window_entry(slot_index, slot.shape->pipeline));
    refresh_window(phase);
    return SubmitResult::kSubmitted;
  }

  // Why the last submit was refused.
  EXPERTPLEX_HOST_DEVICE OperationFault fault() const { return fault_; }

  // Looks at what is in flight and tells every cluster what to do. True: something changed.
  EXPERTPLEX_HOST_DEVICE bool decide(const SharingPolicy& policy) {
    const PhaseLook prefill = look_at(Phase::kPrefill);
    const PhaseLook decode = look_at(Phase::kDecode);
    const SharingPlan plan = make_plan(policy, prefill, decode, aborted());
    if (!plan_changed(plan)) return false;
    for (uint32_t c = 0; c < limits_.clusters; ++c) write_decision(plan, c);
    Mem::count(&shared()->decisions, 1);
    return true;
  }

  // decide() in parts, for an agent of several lanes: one lane looks, makes the plan and asks
  // plan_changed; if so, all lanes write decisions, each its own clusters.

  // What one phase has in flight. Drops finished operations from its ready window on the way.
  struct PhaseLook {
    bool main = false;       // tiles of the main pipeline that nobody has claimed
    bool resident = false;   // the same for the resident pipeline
    uint32_t footprint = 0;  // x_moe of the oldest operation behind `main`
  };
  EXPERTPLEX_HOST_DEVICE PhaseLook look_at(Phase phase) {
    PhaseLook result;
    refresh_window(phase);
    uint64_t rest = Mem::read(&shared()->agent.ready_window[phase_index(phase)]);
    for (; rest != 0; rest >>= 8) {
      const SlotView slot = layout_.slot(base_, phase, window_entry_slot(rest));
      const auto look = Mem::begin_look();
      const UnclaimedTiles unclaimed = find_unclaimed_tiles<Mem>(slot);
      Mem::end_look(look, unclaimed.any);
      if (!unclaimed.any) continue;
      if (window_entry_role(rest) == PipelineRole::kResident) {
        result.resident = true;
        continue;
      }
      if (!result.main) result.footprint = unclaimed.row_blocks;
      result.main = true;
    }
    return result;
  }

  EXPERTPLEX_HOST_DEVICE bool aborted() const {
    return Mem::load(&shared()->abort_word, Relaxed{}, SystemScope{}) != 0;
  }

  EXPERTPLEX_HOST_DEVICE SharingPlan make_plan(const SharingPolicy& policy,
                                               const PhaseLook& prefill, const PhaseLook& decode,
                                               bool abort) const {
    Decision d;
    d.preempt = policy.preemption_enabled;
    d.abort = abort;
    d.resident = decode.resident;
    d.park = policy.mode == SwitchMode::kParking;
    d.pause = policy.pause;
    d.lend = policy.lend_while_waiting || !(prefill.main && decode.main);
    SharingPlan plan;
    plan.prefill_side = d;
    d.main_phase = Phase::kDecode;
    plan.decode_side = d;
    if (!decode.main) return plan;
    plan.decode_clusters =
        prefill.main ? contended_decode_clusters(policy.budget, decode.footprint, limits_.clusters)
                     : limits_.clusters;
    return plan;
  }

  EXPERTPLEX_HOST_DEVICE bool plan_changed(const SharingPlan& plan) {
    AgentPrivate* agent = &shared()->agent;
    const uint64_t sides =
        uint64_t{pack_decision(plan.decode_side)} << 32 | pack_decision(plan.prefill_side);
    if (Mem::read(&agent->plan_written) && Mem::read(&agent->written_plan[0]) == sides &&
        Mem::read(&agent->written_plan[1]) == plan.decode_clusters) {
      return false;
    }
    Mem::write(&agent->written_plan[0], sides);
    Mem::write(&agent->written_plan[1], uint64_t{plan.decode_clusters});
    Mem::write(&agent->plan_written, uint32_t{1});
    return true;
  }

  EXPERTPLEX_HOST_DEVICE void write_decision(const SharingPlan& plan, uint32_t cluster) {
    uint64_t* word = &layout_.cluster(base_, cluster)->preempt_word;
    const Decision& decision =
        cluster < plan.decode_clusters ? plan.decode_side : plan.prefill_side;
    const PreemptWord before = unpack_preempt_word(Mem::load(word, Relaxed{}, DeviceScope{}));
    if (before.epoch != 0 && pack_decision(before.decision) == pack_decision(decision)) return;
    Mem::store(word, pack_preempt_word({before.epoch + 1, decision}), Release{}, DeviceScope{});
  }

 private:
  EXPERTPLEX_HOST_DEVICE SharedState* shared() const { return layout_.shared(base_); }

  EXPERTPLEX_HOST_DEVICE bool is_busy(Phase phase, uint32_t slot) const {
    const uint32_t finished =
        Mem::load(&layout_.slot(base_, phase, slot).words->finished, Acquire{}, DeviceScope{});
    // An announced operation may have finished before it was submitted, even seen.
    return is_earlier(finished, Mem::read(&shared()->agent.submitted[phase_index(phase)][slot]));
  }

  EXPERTPLEX_HOST_DEVICE SubmitResult fail(OperationFault fault) {
    fault_ = fault;
    return SubmitResult::kFault;
  }

  EXPERTPLEX_HOST_DEVICE void push_waiting(uint32_t p, uint8_t entry) {
    AgentPrivate* agent = &shared()->agent;
    const uint32_t count = Mem::read(&agent->waiting_count[p]);
    Mem::write(&agent->waiting[p][count], entry);
    Mem::write(&agent->waiting_count[p], count + 1);
  }

  // Drops finished operations from the phase's window and fills it up from those that wait.
  EXPERTPLEX_HOST_DEVICE void refresh_window(Phase phase) {
    const uint32_t p = phase_index(phase);
    AgentPrivate* agent = &shared()->agent;
    const uint64_t before = Mem::read(&agent->ready_window[p]);
    uint64_t after = 0;
    uint32_t length = 0;
    for (uint64_t rest = before; rest != 0; rest >>= 8) {
      if (is_busy(phase, window_entry_slot(rest))) after |= (rest & 0xFF) << (8 * length++);
    }
    const uint32_t waiting = Mem::read(&agent->waiting_count[p]);
    uint32_t taken = 0;
    for (; taken < waiting && length < kReadyWindow; ++taken) {
      const uint64_t entry = Mem::read(&agent->waiting[p][taken]);
      after |= entry << (8 * length++);
    }
    if (taken > 0) {
      for (uint32_t i = taken; i < waiting; ++i) {
        Mem::write(&agent->waiting[p][i - taken], Mem::read(&agent->waiting[p][i]));
      }
      Mem::write(&agent->waiting_count[p], waiting - taken);
    }
    if (after == before) return;
    Mem::write(&agent->ready_window[p], after);
    Mem::store(&shared()->ready_window[p], after, Release{}, DeviceScope{});
  }

  SchedulerLimits limits_;
  StorageLayout layout_;
  void* base_;
  bool held_;
  OperationFault fault_ = OperationFault::kNone;
};

}  // namespace expertplex::apk
