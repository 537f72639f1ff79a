// The attention servers of the simulated world: drivers of EngineCore with random latencies, and
// the checks of what they are given to do.
#include <algorithm>

#include "backend/kv_cache.h"
#include "serving/simulated_world.h"

namespace expertplex {
namespace {

// How long a decode server waits for its group.
constexpr Nanoseconds kGroupLimit = 2 * kSecond;

}  // namespace

World::Row& World::row(Server& server, std::span<const uint32_t> table, int position) {
  require(static_cast<size_t>(position / kKvPageTokens) < table.size(), "block table is too short");
  return server.cache.at(table[static_cast<size_t>(position / kKvPageTokens)] * kKvPageTokens +
                         static_cast<uint32_t>(position % kKvPageTokens));
}

void World::signal(WordKey word, uint32_t epoch, uint32_t value) {
  at(latency(), [=, this] {
    auto& seen = words_[word];
    require(static_cast<int32_t>(epoch - seen.first) > 0, "an epoch was used twice");
    seen = {epoch, value};
    std::get<0>(word) ? look_decode(std::get<1>(word)) : look_prefill(std::get<1>(word));
  });
}

// --- prefill ---

void World::publish(const Handoff& handoff) {
  if (handoff.token_count == 0) ++coverage_["handoff without tokens"];
  signal({true, handoff.decode_server, handoff.prefill_server, handoff.slot.index},
         handoff.slot.epoch, handoff.token_count + 1);
}

void World::look_prefill(int index) {
  Server& server = prefill_[static_cast<size_t>(index)];
  if (server.running) return;  // it looks again when its iteration is over
  for (const Handoff& handoff : core_.take_handoffs_to_publish(index, now_)) publish(handoff);
  for (const Handoff& handoff : core_.unacknowledged_handoffs(index)) {
    const auto word = words_[{false, index, handoff.decode_server, handoff.slot.index}];
    if (word.first == handoff.slot.epoch) {
      core_.handoff_acknowledged(index, handoff.request, now_);
    }
  }
  for (const Handoff& handoff : core_.unacknowledged_handoffs(index)) {
    users_.at(handoff.request.value).faulted |= faults_;
  }
  if (fault(lost_timer_probability_)) {
    core_.expire_handoffs(index, now_);
    at(400 * kMillisecond, [=, this] { look_prefill(index); });
  }
  if (auto batch = core_.next_prefill(index, now_)) start_prefill(index, std::move(*batch));
  after_step();
}

void World::start_prefill(int index, Batch batch) {
  Server& server = prefill_[static_cast<size_t>(index)];
  server.running = true;
  require(static_cast<int>(batch.tokens.size()) <= config_.max_prefill_tokens, "prefill rows");
  size_t token = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& rows = batch.sequences[i];
    const uint64_t id = batch.requests[i].value;
    const User& user = users_.at(id);
    if (rows.context_length == 0) {
      require(id > server.last_scheduled, "not first come, first served");
      server.last_scheduled = id;
    }
    for (int r = 0; r < rows.row_count; ++r) {
      require(
          batch.tokens.at(token++) == user.prompt.at(static_cast<size_t>(rows.context_length + r)),
          "not the prompt's token");
    }
    const int end = rows.context_length + rows.row_count;
    require(rows.sample.has_value() == (end == static_cast<int>(user.prompt.size())), "sample");
  }
  require(token == batch.tokens.size(), "tokens without a sequence");

  const Nanoseconds duration = latency();
  const bool failed = fault(fail_probability_);
  for (const RequestId id : batch.requests) users_.at(id.value).faulted |= failed;
  const auto shared = std::make_shared<Batch>(std::move(batch));
  at(duration / 4, [=, this] { prefill_rows(index, *shared); });
  for (size_t i = 0; i < shared->sequences.size(); ++i) {
    const Nanoseconds delay = options_.put_after_publish ? duration + 20 * kMillisecond
                                                         : random_.between(duration / 4, duration);
    at(delay, [=, this] { put_pages(*shared, i, index); });
  }
  at(duration, [=, this] { finish_prefill(index, *shared, failed); });
}

void World::prefill_rows(int index, const Batch& batch) {
  Server& server = prefill_[static_cast<size_t>(index)];
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& rows = batch.sequences[i];
    for (int p = 0; p < rows.context_length; ++p) {
      require(row(server, rows.block_table, p) == Row{batch.requests[i].value, p},
              "prefill reads rows of another request");
    }
    for (int r = 0; r < rows.row_count; ++r) {
      const int position = rows.context_length + r;
      row(server, rows.block_table, position) = {batch.requests[i].value, position};
    }
  }
}

void World::put_pages(const Batch& batch, size_t sequence, int prefill_server) {
  const Batch::Puts& puts = batch.puts.at(sequence);
  const Server& from = prefill_[static_cast<size_t>(prefill_server)];
  Server& to = decode_[static_cast<size_t>(puts.decode_server)];
  require(puts.source.size() == puts.destination.size(), "puts");
  for (size_t i = 0; i < puts.source.size(); ++i) {
    std::copy_n(from.cache.begin() + puts.source[i] * kKvPageTokens, kKvPageTokens,
                to.cache.begin() + puts.destination[i] * kKvPageTokens);
  }
}

void World::finish_prefill(int index, const Batch& batch, bool failed) {
  prefill_[static_cast<size_t>(index)].running = false;
  if (failed) {
    ++coverage_["prefill failed"];
    core_.prefill_failed(index, make_error(ErrorCode::kDeadlineExceeded, "simulated"), now_);
  } else {
    std::vector<int32_t> next;
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const User& user = users_.at(batch.requests[i].value);
      if (user.finish != FinishReason::kNone) ++coverage_["cancelled while prefilling"];
      next.push_back(batch.sequences[i].sample ? true_token(user, 0) : -1);
    }
    core_.prefill_done(index, next, now_);
  }
  after_step();
  at(random_.between(0, 100) * kMicrosecond, [=, this] { look_prefill(index); });
}

// --- decode ---

void World::look_decode(int index) {
  Server& server = decode_[static_cast<size_t>(index)];
  if (server.running) return;
  for (const Handoff& handoff : core_.expected_handoffs(index)) {
    const auto word = words_[{true, index, handoff.prefill_server, handoff.slot.index}];
    if (word.first != handoff.slot.epoch) continue;
    const bool taken = core_.handoff_arrived(index, handoff.request, word.second - 1, now_);
    if (!taken && word.second > 1) ++coverage_["cancelled while handing off"];
    signal({false, handoff.prefill_server, index, handoff.slot.index}, handoff.slot.epoch,
           taken ? 1 : 2);
  }
  if (auto batch = core_.next_decode(index, now_)) start_decode(index, std::move(*batch));
  after_step();
}

void World::check_decode_batch(int index, const Batch& batch) const {
  require(static_cast<int>(batch.sequences.size()) <= config_.max_decode_batch, "decode batch");
  std::set<uint32_t> pages;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& rows = batch.sequences[i];
    const User& user = users_.at(batch.requests[i].value);
    const int generated = static_cast<int>(user.tokens.size());
    require(rows.row_count == 1 && rows.sample.has_value(), "a decode row");
    require(rows.context_length == static_cast<int>(user.prompt.size()) + generated - 1,
            "context length");
    require(batch.tokens.at(i) == user.tokens.back(), "not the last token");
    for (uint32_t page : rows.block_table) require(pages.insert(page).second, "a page owned twice");
    auto& cache = const_cast<World*>(this)->decode_[static_cast<size_t>(index)];
    for (int p = 0; p < rows.context_length; ++p) {
      const Row seen = const_cast<World*>(this)->row(cache, rows.block_table, p);
      if (seen != Row{batch.requests[i].value, p}) {
        violate(fmt::format("request {} position {} reads row {} of request {}",
                            batch.requests[i].value, p, seen.position, seen.request));
      }
    }
  }
}

// A member's part: it begins (the leader publishes the next number, the others take the newest that
// they have not had), comes to the iteration of that number, and goes on when all have come.
void World::start_decode(int index, Batch batch) {
  Server& server = decode_[static_cast<size_t>(index)];
  check_decode_batch(index, batch);
  server.running = true;
  server.batch = std::move(batch);
  server.waiting_for_number = false;
  server.iteration = core_.decode_iteration();
  const uint64_t part = ++server.part;
  if (server.batch.empty()) ++coverage_["skip"];
  if (fault(fail_probability_ / 2)) {
    ++coverage_["decode failed before it began"];
    note_decode_fault(server.iteration);
    at(latency(), [=, this] { finish_decode(index, true); });
    return;
  }
  Nanoseconds delay = latency() / 4;
  if (fault(stall_probability_ / 4)) {
    ++coverage_["began after the others gave up"];
    note_decode_fault(server.iteration);
    delay = 3 * kGroupLimit / 2;
  }
  at(delay, [=, this] { begin_part(index); });
  at(delay + kGroupLimit, [=, this] {
    const Server& now = decode_[static_cast<size_t>(index)];
    if (!now.running || now.part != part) return;
    if (!faulty_iterations_.count(now.iteration)) violate("a member waits in vain without a fault");
    ++coverage_["decode wait ran out"];
    finish_decode(index, true);
  });
}

void World::begin_part(int index) {
  Server& server = decode_[static_cast<size_t>(index)];
  if (index != 0) {
    server.waiting_for_number = true;
    take_number(index);
    return;
  }
  server.epoch = ++group_epoch_;
  core_.decode_begun(0, now_);
  after_step();
  for (int member = 1; member < static_cast<int>(decode_.size()); ++member) take_number(member);
  arrive(0);
}

void World::take_number(int index) {
  Server& server = decode_[static_cast<size_t>(index)];
  if (!server.running || !server.waiting_for_number || server.epoch == group_epoch_) return;
  server.waiting_for_number = false;
  server.epoch = group_epoch_;
  core_.decode_begun(index, now_);
  arrive(index);
}

void World::arrive(int index) {
  Server& server = decode_[static_cast<size_t>(index)];
  const uint32_t epoch = server.epoch;
  std::set<int>& here = arrivals_[epoch];
  here.insert(index);
  // Who skips does not wait for the others.
  if (server.batch.empty()) {
    at(random_.between(1, 300) * kMicrosecond, [=, this] { finish_decode(index, false); });
  }
  if (here.size() < decode_.size()) return;
  arrivals_.erase(epoch);
  const Nanoseconds shared = latency();
  for (size_t i = 0; i < decode_.size(); ++i) {
    const Server& member = decode_[i];
    if (member.batch.empty()) continue;
    require(member.running && member.epoch == epoch, "members of different iterations meet");
    const bool failed = fault(fail_probability_ / 2);
    if (failed) note_decode_fault(member.iteration);
    const uint64_t part = member.part;
    at(shared + random_.between(0, 100) * kMicrosecond, [=, this] {
      if (decode_[i].running && decode_[i].part == part) finish_decode(static_cast<int>(i), failed);
    });
  }
}

void World::note_decode_fault(uint64_t iteration) {
  faulty_iterations_.insert(iteration);
  for (auto& [id, user] : users_) user.faulted |= !user.tokens.empty();
}

void World::finish_decode(int index, bool failed) {
  Server& server = decode_[static_cast<size_t>(index)];
  const Batch batch = std::exchange(server.batch, {});
  server.running = false;
  std::vector<int32_t> next;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& rows = batch.sequences[i];
    row(server, rows.block_table, rows.context_length) = {batch.requests[i].value,
                                                          rows.context_length};
    const User& user = users_.at(batch.requests[i].value);
    if (user.finish != FinishReason::kNone) ++coverage_["cancelled while decoding"];
    int32_t token = true_token(user, static_cast<int>(user.tokens.size()));
    if (options_.wrong_token_on_batch && batch.sequences.size() > 1) token = (token + 1) % 7 + 1;
    next.push_back(token);
  }
  if (failed) {
    ++coverage_["decode failed"];
    note_decode_fault(server.iteration);
    core_.decode_failed(index, make_error(ErrorCode::kDeadlineExceeded, "simulated"), now_);
  } else {
    core_.decode_done(index, next, now_);
  }
  after_step();
  at(random_.between(0, 100) * kMicrosecond, [=, this] { look_decode(index); });
}

}  // namespace expertplex
