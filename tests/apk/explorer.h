// Walks every interleaving of a small concurrent program (sequentially consistent), and checks on
// the way that plain data is ordered by acquire and release alone.
//
// The program is a Model: a few fibers over one arena of memory, which they touch through
// ModelMemory (model_memory.h). Before each atomic access the fiber gives control back and the
// explorer chooses who goes on. Where several can, the explorer keeps a copy of everything (arena,
// stacks, checker state) and comes back to it for the others.
//
// Reduction: a state is the arena, what each fiber has read since its last checkpoint, who knows of
// which plain accesses, and the checker's state. A state seen before is not walked again, so the
// number of schedules covered (paths through the state graph) is far above the number of states.
//
// Polling: a loop that found nothing calls retry(), which takes what it has just read out of the
// fiber's state: looking again is then the same state, unless something has changed.
//
// Ordering: for each region of plain data the explorer tracks who knows of its last write and of
// the reads since (happens-before by release and acquire, with release sequences as in C++20). A
// plain access that is not ordered after the conflicting ones is a fault, so a lost release is
// found even though the walk itself is sequentially consistent.
//
// Checks: faults reported by the model or the race check; a run ends when the model is complete(),
// and from every state such an end must be reachable: no deadlock, no livelock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apk/memory.h"

namespace expertplex::apk {

constexpr size_t kArenaBytes = 8 * 1024;
constexpr int kMaxFibers = 8;
constexpr int kMaxRegions = 28;

// One bit for "knows the last write of region r", and one per fiber for "knows f's last read of r".
class Knowledge {
 public:
  static constexpr int kWords = kMaxRegions * (1 + kMaxFibers) / 64 + 1;
  bool test(int bit) const { return words[bit / 64] >> (bit % 64) & 1; }
  void set(int bit) { words[bit / 64] |= uint64_t{1} << (bit % 64); }
  void clear(int bit) { words[bit / 64] &= ~(uint64_t{1} << (bit % 64)); }
  std::array<uint64_t, kWords> words{};
};

class Explorer;
enum class Access { kLoad, kStore, kModify };

class Model {
 public:
  virtual ~Model() = default;
  virtual int fibers() const = 0;
  // Once: writes the initial state into the zeroed arena and defines the regions.
  virtual void build(Explorer& explorer) = 0;
  // The program of one fiber. Its stack is copied and may be abandoned: keep nothing on it that
  // owns memory.
  virtual void run(int fiber) = 0;
  // Checker state that verdicts depend on: plain bytes without padding of changing value.
  virtual std::pair<void*, size_t> checker_state() { return {nullptr, 0}; }
  // After every step, before the next is chosen; outside of fibers.
  virtual void after_step(Explorer&) {}
  // On every atomic store or RMW, with the new value.
  virtual void on_write(const void*, uint64_t) {}
  // Whether the running fiber's next access to the word commutes with all that others may still do
  // before it: a load of a word that nobody will write any more, an access to a word that nobody
  // else will touch. It is then not interleaved. Every loop of a program needs an access that is
  // not.
  virtual bool is_local(const Explorer&, const void*, Access) const { return false; }
  // Whether the work is done.
  virtual bool complete() const = 0;
  // How a fiber is called in a report.
  virtual std::string fiber_name(int fiber) const { return "fiber " + std::to_string(fiber); }
};

struct Exploration {
  bool ok = false;
  std::string fault;          // the first one found
  std::vector<int> schedule;  // the choices that lead to it
  uint64_t states = 0;
  uint64_t transitions = 0;
  double schedules = 0;  // complete schedules covered (paths; a cycle is cut where it closes)
  double seconds = 0;
  bool truncated = false;  // max_states reached: not exhaustive
  std::string summary() const;
};

// Open addressing: hash of a state -> its number.
class StateTable {
 public:
  StateTable() : slots_(1 << 16) {}
  // The state's number, and whether it is new (then it gets the next number).
  std::pair<uint32_t, bool> insert(uint64_t hash);
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t number = 0;
  };
  void grow();
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

class Explorer {
 public:
  explicit Explorer(Model& model);
  ~Explorer();

  // exact_order: who knows of which plain accesses is part of the state, so that the race check
  // covers every order; else only the orders that the walk happens to take.
  Exploration explore(uint64_t max_states, bool exact_order);

  // Random schedules from one seed instead, for what is too large to walk; each must end within
  // max_steps. `schedules` counts them; states and transitions do not mean anything.
  Exploration sample(uint64_t runs, uint64_t max_steps, uint64_t seed);

  // ---- For models, inside build() ----
  std::byte* arena() { return arena_; }
  // A region of plain data for the race check: its id. It has no memory of its own (a tile's
  // outputs), or one or several ranges of the arena.
  // `exclusive`: reads count as writes (data that passes from holder to holder).
  int define_region(const std::string& name, bool exclusive = false);
  void add_range(int region, const void* start, size_t bytes);

  // ---- For models, inside run() ----
  // The fiber's local state is `local` and nothing else.
  void checkpoint(uint64_t local);
  // mark() before a look, retry(mark) after one that found nothing and changed nothing local.
  uint64_t mark() const;
  void retry(uint64_t mark);
  // Notes a fault (the first counts); the run ends after this step.
  void report(const std::string& message);
  void region_read(int region);
  void region_write(int region);
  int current_fiber() const { return running_; }

  // ---- For ModelMemory ----
  static Explorer& current();
  void before_access(const void* word, Access access);
  // Whether another fiber stands right before a store or RMW of the word.
  bool others_about_to_write(const void* word) const;
  void after_load(const void* word, uint64_t value, Order order);
  void after_store(const void* word, uint64_t value, Order order);
  void after_rmw(const void* word, uint64_t after, Order order, uint64_t before);
  void plain_read(const void* data, size_t bytes);
  void plain_write(const void* data);
  // Calls `write` between taking the old bytes out of the state hash and the new ones in.
  template <typename F>
  void change(const void* data, size_t bytes, F write) {
    fold_bytes(data, bytes);
    write();
    fold_bytes(data, bytes);
  }

 private:
  struct Fiber;
  struct Region {
    std::string name;
    bool exclusive;
  };
  struct Range {
    uint32_t begin, end;
    int region;
  };
  struct Step {
    int choice;
    uint32_t untried;  // fibers still to be chosen here
    uint32_t state;
    double schedules;
  };
  struct Snapshot;
  // Everything but arena, stacks and checker state that a step changes.
  struct Walk {
    uint64_t arena_hash = 0;
    uint32_t readers[kMaxRegions] = {};  // by region: fibers that have read since the last write
  };

  void start_fiber(Fiber& fiber);
  uint32_t enabled_fibers() const;
  bool walk();
  bool backtrack();
  void leave_state(double schedules);
  void step(int fiber);
  void save(Snapshot& snapshot);
  void restore(const Snapshot& snapshot);
  void resume(int fiber);
  void give_back();
  static void fiber_entry();
  uint64_t state_hash();
  uint64_t order_hash() const;
  void fold_bytes(const void* data, size_t bytes);
  uint32_t offset_of(const void* word) const;
  int region_at(const void* data) const;
  Knowledge& word_knowledge(const void* word);
  void publish(const void* word, Order order, bool is_rmw);
  void learn(const void* word, Order order);
  void forget(int bit, int except_fiber);
  void forget_nothing(int bit);
  void check_progress(Exploration& result) const;

  Model& model_;
  alignas(128) std::byte arena_[kArenaBytes];
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Region> regions_;
  std::vector<Range> ranges_;
  std::vector<uint16_t> word_index_;  // by offset / 4: 1 + place in words_, 0 none
  std::vector<Knowledge> words_;      // what each atomic word publishes
  Walk now_;
  int running_ = -1;
  std::string fault_;

  std::vector<Step> path_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;  // by place in path_
  StateTable states_;
  std::vector<double> state_schedules_;  // negative while on the path
  std::vector<std::pair<uint32_t, uint32_t>> edges_;
  std::vector<uint32_t> complete_states_;
  uint64_t transitions_ = 0;
  uint64_t max_states_ = 0;
  bool truncated_ = false;
  bool exact_order_ = true;
};

uint64_t mix_hash(uint64_t x);
inline uint64_t combine_hash(uint64_t a, uint64_t b) {
  return mix_hash(a * 0x9E3779B97F4A7C15ull + b);
}
// Hash of trivially copyable bytes; padding must have a fixed value.
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace expertplex::apk
