#include "serving/admission.h"

#include <algorithm>

#include "backend/kv_cache.h"
#include "base/check.h"

namespace expertplex {
namespace {

// The last token is never fed back, so its keys and values are never stored.
int decode_pages_of(int prompt_tokens, int max_tokens) {
  return pages_for(prompt_tokens + max_tokens - 1);
}

}  // namespace

Admission::Admission(const AdmissionConfig& config)
    : config_(config),
      prefill_pages_(config.prefill_servers, PagePool(config.prefill_pages)),
      decode_pages_(config.decode_servers, PagePool(config.decode_pages)),
      slots_(config.decode_servers, HandoffSlots(config.handoff_slots)),
      seats_used_(config.decode_servers) {}

void Admission::remove(Request* request) {
  const auto it = std::find(queue_.begin(), queue_.end(), request);
  EXPERTPLEX_CHECK(it != queue_.end(), "request {} is not queued", request->id.value);
  queue_.erase(it);
}

bool Admission::can_ever_fit(int prompt_tokens, int max_tokens) const {
  return pages_for(prompt_tokens) <= config_.prefill_pages &&
         decode_pages_of(prompt_tokens, max_tokens) <= config_.decode_pages;
}

int Admission::choose_decode_server(int pages) const {
  int best = -1;
  for (int server = 0; server < config_.decode_servers; ++server) {
    if (seats_used_[server] >= config_.decode_seats || slots_[server].full() ||
        decode_pages_[server].free() < pages) {
      continue;
    }
    if (best < 0 || seats_used_[server] < seats_used_[best]) best = server;
  }
  return best;
}

int Admission::choose_prefill_server(int pages, std::span<const int64_t> load) const {
  int best = -1;
  for (int server = 0; server < config_.prefill_servers; ++server) {
    if (prefill_pages_[server].free() < pages) continue;
    if (best < 0 || load[server] < load[best]) best = server;
  }
  return best;
}

Request* Admission::admit(std::span<const int64_t> prefill_load) {
  if (queue_.empty()) return nullptr;
  Request* request = queue_.front();
  const int prefill_pages = pages_for(request->prompt_size());
  const int decode_pages = decode_pages_of(request->prompt_size(), request->max_tokens);
  const int decode_server = choose_decode_server(decode_pages);
  const int prefill_server = choose_prefill_server(prefill_pages, prefill_load);
  if (decode_server < 0 || prefill_server < 0) return nullptr;

  queue_.pop_front();
  request->state = RequestState::kAdmitted;
  request->decode_server = decode_server;
  request->prefill_server = prefill_server;
  request->slot = *slots_[decode_server].open();
  request->decode_pages = *decode_pages_[decode_server].allocate(decode_pages);
  request->prefill_pages = *prefill_pages_[prefill_server].allocate(prefill_pages);
  ++seats_used_[decode_server];
  return request;
}

void Admission::release_prefill_half(Request& request) {
  EXPERTPLEX_CHECK(!request.prefill_pages.empty());
  prefill_pages_[request.prefill_server].release(request.prefill_pages);
  request.prefill_pages.clear();
  slots_[request.decode_server].close(request.slot);
}

void Admission::release_decode_half(Request& request) {
  EXPERTPLEX_CHECK(!request.decode_pages.empty());
  decode_pages_[request.decode_server].release(request.decode_pages);
  request.decode_pages.clear();
  --seats_used_[request.decode_server];
}

int64_t Admission::pages_used() const {
  int64_t used = 0;
  for (const PagePool& pool : prefill_pages_) used += pool.used();
  for (const PagePool& pool : decode_pages_) used += pool.used();
  return used;
}

int64_t Admission::pages_total() const {
  return int64_t{config_.prefill_servers} * config_.prefill_pages +
         int64_t{config_.decode_servers} * config_.decode_pages;
}

int Admission::slots_used() const {
  int used = 0;
  for (const HandoffSlots& slots : slots_) used += slots.used();
  return used;
}

}  // namespace expertplex
