#include "apk/explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "apk/explorer_fiber.h"
#include "base/check.h"
#include "base/random.h"

namespace expertplex::apk {
namespace {

constexpr size_t kMaxPath = 4000;

Explorer* g_current = nullptr;
jmp_buf g_scheduler;

}  // namespace

uint64_t mix_hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t hash_bytes(const void* data, size_t bytes) {
  uint64_t h = bytes;
  const char* at = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, std::min<size_t>(8, bytes - i));
    h = combine_hash(h, word);
  }
  return h;
}

struct Explorer::Snapshot {
  Walk walk;
  std::vector<char> bytes;  // arena, words, checker state, and per fiber: Live and used stack
};

std::string Exploration::summary() const {
  if (states == 0) return fmt::format("{:.0f} schedules, {:.2f} s cpu", schedules, seconds);
  return fmt::format("{:.2e} schedules, {} states, {} transitions, {:.2f} s cpu{}", schedules,
                     states, transitions, seconds, truncated ? ", TRUNCATED" : "");
}

std::pair<uint32_t, bool> StateTable::insert(uint64_t hash) {
  if (hash == 0) hash = 1;
  if (size_ * 2 > slots_.size()) grow();
  size_t i = hash & (slots_.size() - 1);
  for (; slots_[i].hash != 0; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash) return {slots_[i].number, false};
  }
  slots_[i] = {hash, static_cast<uint32_t>(size_)};
  return {static_cast<uint32_t>(size_++), true};
}

void StateTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.hash == 0) continue;
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].hash != 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

Explorer::Explorer(Model& model) : model_(model), word_index_(kArenaBytes / 4) {
  std::memset(arena_, 0, sizeof(arena_));
  words_.reserve(kMaxWords);
  g_current = this;
  model_.build(*this);
  fold_bytes(arena_, sizeof(arena_));
  EXPERTPLEX_CHECK(model_.fibers() <= kMaxFibers);
  for (int f = 0; f < model_.fibers(); ++f) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->id = f;
    fibers_.back()->live.known.words.fill(~uint64_t{0});
  }
}

Explorer::~Explorer() { g_current = nullptr; }

Explorer& Explorer::current() { return *g_current; }

// Runs the fiber to its first access.
__attribute__((noinline)) void Explorer::start_fiber(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Explorer::fiber_entry, 0);
  running_ = fiber.id;
  if (_setjmp(g_scheduler) == 0) setcontext(&fibers_[running_]->context);
}

void Explorer::fiber_entry() {
  g_current->model_.run(g_current->running_);
  g_current->fibers_[g_current->running_]->live.finished = true;
  _longjmp(g_scheduler, 1);
}

__attribute__((noinline)) void Explorer::resume(int fiber) {
  running_ = fiber;
  if (_setjmp(g_scheduler) == 0) _longjmp(fibers_[fiber]->live.at, 1);
}

__attribute__((noinline)) void Explorer::give_back() {
  Fiber::Live& live = fibers_[running_]->live;
  // Below this frame lies nothing that is needed again; its own locals are within the slack.
  live.stack_low = static_cast<char*>(__builtin_frame_address(0)) - 256;
  if (_setjmp(live.at) == 0) _longjmp(g_scheduler, 1);
}

void Explorer::step(int f) {
  resume(f);
  model_.after_step(*this);
}

namespace {
void put(std::vector<char>& out, const void* data, size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  out.insert(out.end(), begin, begin + bytes);
}
const char* get(const char* in, void* data, size_t bytes) {
  std::memcpy(data, in, bytes);
  return in + bytes;
}
}  // namespace

void Explorer::save(Snapshot& snapshot) {
  snapshot.walk = now_;
  std::vector<char>& out = snapshot.bytes;
  out.clear();
  put(out, arena_, sizeof(arena_));
  const size_t words = words_.size();
  put(out, &words, sizeof(words));
  put(out, words_.data(), words * sizeof(Knowledge));
  const auto [checker, bytes] = model_.checker_state();
  put(out, checker, bytes);
  for (const auto& fiber : fibers_) {
    put(out, &fiber->live, sizeof(fiber->live));
    if (fiber->live.finished) continue;
    const char* low = fiber->live.stack_low;
    put(out, low, static_cast<size_t>(fiber->stack.get() + kStackBytes - low));
  }
}

void Explorer::restore(const Snapshot& snapshot) {
  now_ = snapshot.walk;
  const char* in = get(snapshot.bytes.data(), arena_, sizeof(arena_));
  size_t words = 0;
  in = get(in, &words, sizeof(words));
  in = get(in, words_.data(), words * sizeof(Knowledge));
  // Words that were first published on another branch have published nothing here.
  std::fill(words_.begin() + static_cast<ptrdiff_t>(words), words_.end(), Knowledge{});
  const auto [checker, bytes] = model_.checker_state();
  in = get(in, checker, bytes);
  for (const auto& fiber : fibers_) {
    in = get(in, &fiber->live, sizeof(fiber->live));
    if (fiber->live.finished) continue;
    char* low = fiber->live.stack_low;
    in = get(in, low, static_cast<size_t>(fiber->stack.get() + kStackBytes - low));
  }
}

uint64_t Explorer::state_hash() {
  uint64_t h = now_.arena_hash;
  for (const auto& fiber : fibers_) {
    h = combine_hash(h, combine_hash(fiber->live.history, fiber->live.finished));
  }
  if (exact_order_) h = combine_hash(h, order_hash());
  const auto [checker, bytes] = model_.checker_state();
  return combine_hash(h, hash_bytes(checker, bytes));
}

Exploration Explorer::explore(uint64_t max_states, bool exact_order) {
  exact_order_ = exact_order;
  const std::clock_t begin = std::clock();
  g_current = this;
  max_states_ = max_states;
  for (const auto& fiber : fibers_) start_fiber(*fiber);
  while (walk() && backtrack()) {
  }
  Exploration result;
  result.fault = fault_;
  for (const Step& s : path_) result.schedule.push_back(s.choice);
  result.states = states_.size();
  result.transitions = transitions_;
  result.truncated = truncated_;
  if (fault_.empty() && !truncated_) {
    result.schedules = state_schedules_[0];
    check_progress(result);
  }
  result.ok = result.fault.empty() && !result.truncated;
  result.seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return result;
}

uint32_t Explorer::enabled_fibers() const {
  uint32_t enabled = 0;
  for (const auto& fiber : fibers_) enabled |= uint32_t{!fiber->live.finished} << fiber->id;
  return enabled;
}

Exploration Explorer::sample(uint64_t runs, uint64_t max_steps, uint64_t seed) {
  const std::clock_t begin = std::clock();
  g_current = this;
  Random random(seed);
  for (const auto& fiber : fibers_) start_fiber(*fiber);
  Snapshot start;
  save(start);
  Exploration result;
  for (uint64_t run = 0; run < runs && fault_.empty(); ++run) {
    restore(start);
    result.schedule.clear();
    // Some runs switch at nearly every access, others let a fiber run for long.
    const double stay = random.unit() * 0.95;
    int choice = 0;
    for (uint64_t i = 0; !model_.complete() && fault_.empty(); ++i) {
      if (i == max_steps) report("the run does not end");
      const uint32_t enabled = enabled_fibers();
      if (i == 0 || !(enabled >> choice & 1) || !random.chance(stay)) {
        choice = static_cast<int>(random.below(fibers_.size()));
        while (!(enabled >> choice & 1)) choice = (choice + 1) % static_cast<int>(fibers_.size());
      }
      result.schedule.push_back(choice);
      step(choice);
    }
    result.schedules += 1;
  }
  result.fault = fault_;
  result.ok = result.fault.empty();
  result.seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return result;
}

// Goes on to a state seen before or to the end of the run. False: a fault.
bool Explorer::walk() {
  while (true) {
    if (!fault_.empty()) return false;
    const auto [id, is_new] = states_.insert(state_hash());
    if (!path_.empty()) edges_.emplace_back(path_.back().state, id);
    if (!is_new) {
      const double known = state_schedules_[id];
      leave_state(known < 0 ? 0 : known);  // a cycle closes: no schedule
      return true;
    }
    if (model_.complete()) {
      complete_states_.push_back(id);
      state_schedules_.push_back(1);
      leave_state(1);
      return true;
    }
    state_schedules_.push_back(-1);
    const uint32_t enabled = enabled_fibers();
    truncated_ = states_.size() > max_states_ || path_.size() > kMaxPath;
    if (truncated_) return false;
    if (enabled == 0) {
      report("deadlock: every fiber has returned and the work is not done");
      return false;
    }
    const int choice = __builtin_ctz(enabled);
    const uint32_t untried = enabled & (enabled - 1);
    if (untried != 0) {
      if (snapshots_.size() <= path_.size()) snapshots_.resize(path_.size() + 1);
      auto& snapshot = snapshots_[path_.size()];
      if (!snapshot) snapshot = std::make_unique<Snapshot>();
      save(*snapshot);
    }
    path_.push_back({choice, untried, id, 0});
    ++transitions_;
    step(choice);
  }
}

void Explorer::leave_state(double schedules) {
  if (!path_.empty()) path_.back().schedules += schedules;
}

// Takes the last choice that has an alternative; false: all have been taken.
bool Explorer::backtrack() {
  while (!path_.empty()) {
    Step& last = path_.back();
    if (last.untried != 0) {
      last.choice = __builtin_ctz(last.untried);
      last.untried &= last.untried - 1;
      restore(*snapshots_[path_.size() - 1]);
      ++transitions_;
      step(last.choice);
      return true;
    }
    const double schedules = last.schedules;
    state_schedules_[last.state] = schedules;
    path_.pop_back();
    leave_state(schedules);
  }
  return false;
}

// Every state must lead to a complete end under some schedule.
void Explorer::check_progress(Exploration& result) const {
  const size_t count = states_.size();
  std::vector<uint32_t> first(count + 1, 0);
  for (const auto& [from, to] : edges_) ++first[to + 1];
  for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  std::vector<uint32_t> sources(edges_.size());
  std::vector<uint32_t> fill(first.begin(), first.end() - 1);
  for (const auto& [from, to] : edges_) sources[fill[to]++] = from;
  std::vector<bool> reaches(count, false);
  std::vector<uint32_t> todo = complete_states_;
  size_t reached = 0;
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    if (reaches[state]) continue;
    reaches[state] = true;
    ++reached;
    for (uint32_t i = first[state]; i < first[state + 1]; ++i) todo.push_back(sources[i]);
  }
  if (reached == count) return;
  result.fault = fmt::format("no progress: from {} of {} states the work can never be done",
                             count - reached, count);
}

void Explorer::report(const std::string& message) {
  if (!fault_.empty()) return;
  fault_ = running_ >= 0 ? model_.fiber_name(running_) + ": " + message : message;
}

// ---- accesses ----

uint32_t Explorer::offset_of(const void* word) const {
  const auto offset = static_cast<const std::byte*>(word) - arena_;
  EXPERTPLEX_CHECK(offset >= 0 && offset < static_cast<ptrdiff_t>(kArenaBytes),
                   "access outside of the arena");
  return static_cast<uint32_t>(offset);
}

void Explorer::fold_bytes(const void* data, size_t bytes) {
  const uint32_t offset = offset_of(data);
  for (uint32_t at = offset & ~7u; at < offset + bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, arena_ + at, 8);
    if (word != 0) now_.arena_hash ^= combine_hash(at + 1, word);
  }
}

bool Explorer::others_about_to_write(const void* word) const {
  for (const auto& fiber : fibers_) {
    if (fiber->id != running_ && !fiber->live.finished && fiber->live.about_to_write == word) {
      return true;
    }
  }
  return false;
}

void Explorer::before_access(const void* word, Access access) {
  if (!model_.is_local(*this, word, access)) {
    fibers_[running_]->live.about_to_write = access == Access::kLoad ? nullptr : word;
    give_back();
    fibers_[running_]->live.about_to_write = nullptr;
  }
  uint64_t& history = fibers_[running_]->live.history;
  history = combine_hash(history, 1);
}

void Explorer::after_load(const void* word, uint64_t value, Order order) {
  uint64_t& history = fibers_[running_]->live.history;
  history = combine_hash(history, value);
  learn(word, order);
}

void Explorer::after_store(const void* word, uint64_t value, Order order) {
  publish(word, order, false);
  model_.on_write(word, value);
}

void Explorer::after_rmw(const void* word, uint64_t after, Order order, uint64_t before) {
  uint64_t& history = fibers_[running_]->live.history;
  history = combine_hash(history, before);
  learn(word, order);
  publish(word, order, true);
  model_.on_write(word, after);
}

void Explorer::plain_read(const void* data, size_t bytes) {
  region_read(region_at(data));
  uint64_t& history = fibers_[running_]->live.history;
  history = combine_hash(history, hash_bytes(data, bytes));
}

void Explorer::plain_write(const void* data) { region_write(region_at(data)); }

void Explorer::checkpoint(uint64_t local) {
  fibers_[running_]->live.history = combine_hash(local, 2);
}

uint64_t Explorer::mark() const { return fibers_[running_]->live.history; }

void Explorer::retry(uint64_t mark) { fibers_[running_]->live.history = mark; }

}  // namespace expertplex::apk
