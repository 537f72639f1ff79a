// A world around EngineCore on a virtual clock: users who submit and cancel, attention servers with
// random latencies, words that take their time, caches whose every row says whose it is, and
// faults. The same seed gives the same run.
//
// The checkers stand outside the system: they believe only the batches it hands out and the updates
// it sends. A violation throws Violation with the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "serving/engine_core.h"

namespace expertplex {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct WorldOptions {
  int requests = 200;
  int decode_servers = 0;  // 0: drawn from the seed
  // Canaries: broken drivers that the checkers must catch.
  bool put_after_publish = false;     // the prefill server's last put is late
  bool wrong_token_on_batch = false;  // a sequence's token depends on its batch
};

class World {
 public:
  World(uint64_t seed, WorldOptions options);

  // Faults and traffic, then liveness: no faults, everything must end. Throws Violation.
  void run();

  int submitted() const { return static_cast<int>(users_.size()); }
  uint64_t tokens_seen() const { return tokens_seen_; }
  // How often each rare thing happened.
  const std::map<std::string, int>& coverage() const { return coverage_; }

 private:
  struct User {
    std::vector<int32_t> prompt;
    SamplingParams sampling;
    int max_tokens = 0;
    std::vector<int32_t> tokens;
    std::string text;
    FinishReason finish = FinishReason::kNone;
    bool cancelled = false, faulted = false;
  };
  struct Row {
    uint64_t request = 0;
    int position = -1;
    bool operator==(const Row&) const = default;
  };
  struct Server {
    std::vector<Row> cache;
    bool running = false;
    uint64_t last_scheduled = 0;  // prefill: the newest request begun
    // Decode: the running part.
    Batch batch;
    uint64_t part = 0;       // counts parts, so that a limit knows whether its part is over
    uint64_t iteration = 0;  // as the core counts
    uint32_t epoch = 0;      // the number taken from the leader's word
    bool waiting_for_number = false;
  };
  // Words by (reader is decode, reader, writer, slot).
  using WordKey = std::tuple<bool, int, int, int>;

  EngineCoreConfig draw_config();
  void at(Nanoseconds delay, std::function<void()> action);
  [[noreturn]] void violate(const std::string& what) const;
  void require(bool condition, const char* what) const {
    if (!condition) violate(what);
  }

  void user_arrives();
  void user_cancels(uint64_t id);
  void after_step();
  void on_update(const CoreUpdate& update);
  int32_t true_token(const User& user, int index) const;
  void check_stream(const User& user, const GenerationUpdate& last) const;
  void check_totals() const;

  void look_prefill(int server);
  void start_prefill(int server, Batch batch);
  void prefill_rows(int server, const Batch& batch);
  void put_pages(const Batch& batch, size_t sequence, int prefill_server);
  void finish_prefill(int server, const Batch& batch, bool failed);
  void publish(const Handoff& handoff);
  void look_decode(int server);
  void start_decode(int server, Batch batch);
  void begin_part(int server);
  void take_number(int server);
  void arrive(int server);
  void finish_decode(int server, bool failed);
  void note_decode_fault(uint64_t iteration);
  void check_decode_batch(int server, const Batch& batch) const;
  void signal(WordKey word, uint32_t epoch, uint32_t value);
  Nanoseconds latency();
  bool fault(double probability) { return faults_ && random_.chance(probability); }
  Row& row(Server& server, std::span<const uint32_t> table, int position);

  uint64_t seed_;
  WorldOptions options_;
  Random random_;
  bool faults_ = true;
  double fail_probability_, stall_probability_, cancel_probability_, lost_timer_probability_;
  Nanoseconds arrival_gap_;
  EngineCoreConfig config_;
  EngineCore core_;

  Nanoseconds now_ = 0;
  uint64_t sequence_ = 0;
  using Event = std::tuple<Nanoseconds, uint64_t, std::shared_ptr<std::function<void()>>>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;

  std::vector<Server> prefill_, decode_;
  std::map<WordKey, std::pair<uint32_t, uint32_t>> words_;
  // The decode group on the wire: the leader's word, and who has come to each iteration.
  uint32_t group_epoch_ = 0;
  std::map<uint32_t, std::set<int>> arrivals_;
  std::set<uint64_t> faulty_iterations_;
  std::map<uint64_t, User> users_;
  std::map<std::string, int> coverage_;
  uint64_t tokens_seen_ = 0;
};

}  // namespace expertplex
