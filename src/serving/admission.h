// Admission: the bounded queue, and everything a request must hold before its prefill starts: a
// seat in the decode batch, a handoff slot and pages for prompt + max_tokens on one decode server,
// and pages for the prompt on one prefill server. All of it or nothing.
//
// The full length is reserved, not grown: a request that was admitted always finishes, decode never
// runs out of pages, nothing is ever evicted or computed twice, and no cycle of waiting can form.
// The price is that pages of an unused max_tokens stay idle.
//
// Strictly first come, first served: a head that does not fit waits, and those behind it with it,
// so that a large request cannot starve. Servers are chosen by load: the decode server with the
// most free seats among those with room, the prefill server with the fewest tokens before it.
//
// Thread rules: a policy, stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "serving/handoff_slots.h"
#include "serving/kv_pages.h"
#include "serving/request.h"

namespace expertplex {

struct AdmissionConfig {
  int prefill_servers = 1, decode_servers = 1;
  int prefill_pages = 0, decode_pages = 0;  // per server
  int decode_seats = 0;                     // per decode server: its largest batch
  int handoff_slots = 0;                    // per decode server
  int max_queued = 0;
};

class Admission {
 public:
  explicit Admission(const AdmissionConfig& config);

  // Whether the queue takes so many more now.
  bool has_room(size_t count) const {
    return queue_.size() + count <= static_cast<size_t>(config_.max_queued);
  }
  int queued() const { return static_cast<int>(queue_.size()); }
  const Request* head() const { return queue_.empty() ? nullptr : queue_.front(); }
  void push(Request* request) { queue_.push_back(request); }
  void remove(Request* request);

  // Whether the request could be admitted by an empty system.
  bool can_ever_fit(int prompt_tokens, int max_tokens) const;

  // Reserves for the head of the queue and takes it out, or returns null if it has to wait.
  // `prefill_load` is the number of tokens before each prefill server.
  Request* admit(std::span<const int64_t> prefill_load);

  // The halves come back separately: prefill pages and the slot after the acknowledgement, decode
  // pages and the seat when decoding is over.
  void release_prefill_half(Request& request);
  void release_decode_half(Request& request);

  int prefill_pages_used(int server) const { return prefill_pages_[server].used(); }
  int decode_pages_used(int server) const { return decode_pages_[server].used(); }
  int seats_used(int server) const { return seats_used_[server]; }
  int64_t pages_used() const;
  int64_t pages_total() const;
  int slots_used() const;

 private:
  int choose_decode_server(int pages) const;
  int choose_prefill_server(int pages, std::span<const int64_t> load) const;

  AdmissionConfig config_;
  std::deque<Request*> queue_;
  std::vector<PagePool> prefill_pages_, decode_pages_;
  std::vector<HandoffSlots> slots_;
  std::vector<int> seats_used_;
};

}  // namespace expertplex
