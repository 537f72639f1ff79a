#include "serving/simulated_world.h"

#include <algorithm>

#include "backend/kv_cache.h"

namespace expertplex {
namespace {

constexpr int kVocab = 40;
constexpr int32_t kEos = 0;
constexpr int kMaxModelLen = 160;

std::string text_of_token(int32_t token) { return "<" + std::to_string(token) + ">"; }

class SimulatedText : public TextStream {
 public:
  std::string push(int32_t token) override { return text_of_token(token); }
  std::string finish() override { return {}; }
};

}  // namespace

World::World(uint64_t seed, WorldOptions options)
    : seed_(seed), options_(options), random_(seed), config_(draw_config()), core_(config_) {
  prefill_.resize(static_cast<size_t>(config_.admission.prefill_servers));
  decode_.resize(static_cast<size_t>(config_.admission.decode_servers));
  for (Server& server : prefill_) {
    server.cache.resize(static_cast<size_t>(config_.admission.prefill_pages * kKvPageTokens));
  }
  for (Server& server : decode_) {
    server.cache.resize(static_cast<size_t>(config_.admission.decode_pages * kKvPageTokens));
  }
}

EngineCoreConfig World::draw_config() {
  const bool calm = random_.chance(0.2);
  fail_probability_ = calm ? 0 : random_.unit() * 0.1;
  stall_probability_ = calm ? 0 : random_.unit() * 0.05;
  cancel_probability_ = calm ? 0.05 : random_.unit() * 0.6;
  lost_timer_probability_ = random_.unit() * 0.2;
  arrival_gap_ = random_.between(1, 40) * kMillisecond;
  EngineCoreConfig config;
  config.admission = {.prefill_servers = static_cast<int>(random_.between(1, 3)),
                      .decode_servers = options_.decode_servers > 0
                                            ? options_.decode_servers
                                            : static_cast<int>(random_.between(1, 3)),
                      .prefill_pages = static_cast<int>(random_.between(10, 40)),
                      .decode_pages = static_cast<int>(random_.between(10, 60)),
                      .decode_seats = static_cast<int>(random_.between(1, 8)),
                      .handoff_slots = static_cast<int>(random_.between(1, 6)),
                      .max_queued = static_cast<int>(random_.between(2, 40))};
  config.max_prefill_tokens = kKvPageTokens * static_cast<int>(random_.between(1, 8));
  config.max_decode_batch = config.admission.decode_seats;
  config.max_model_len = kMaxModelLen;
  config.vocab_size = kVocab;
  config.eos_tokens = {kEos};
  config.handoff_limit = 300 * kMillisecond;
  return config;
}

void World::at(Nanoseconds delay, std::function<void()> action) {
  events_.emplace(now_ + delay, ++sequence_,
                  std::make_shared<std::function<void()>>(std::move(action)));
}

void World::violate(const std::string& what) const {
  throw Violation(fmt::format("seed {}, {:.3f} ms: {}", seed_, to_milliseconds(now_), what));
}

Nanoseconds World::latency() {
  if (fault(stall_probability_)) {
    ++coverage_["stall"];
    return random_.between(100, 900) * kMillisecond;
  }
  return random_.between(1, 5000) * kMicrosecond;
}

// --- users ---

void World::user_arrives() {
  User user;
  GenerationRequest request;
  const bool is_long = random_.chance(0.2);
  const int64_t length = random_.between(1, is_long ? kMaxModelLen - 1 : 30);
  for (int64_t i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random_.below(kVocab)));
  }
  if (random_.chance(0.9)) {
    request.sampling.max_tokens = static_cast<int>(random_.between(1, 40));
    if (random_.chance(0.2)) {
      request.sampling.min_tokens =
          static_cast<int>(random_.between(0, *request.sampling.max_tokens));
    }
  }
  request.sampling.ignore_eos = random_.chance(0.3);
  request.accepted_at = now_;
  user.prompt = request.prompt;
  user.sampling = request.sampling;
  const int rest = kMaxModelLen - static_cast<int>(length);
  user.max_tokens = request.sampling.max_tokens.value_or(rest);

  const EngineStatistics before = core_.statistics();
  const auto id = core_.submit(std::move(request), std::make_unique<SimulatedText>(), now_);
  if (!id) {
    ++coverage_[error_code_name(id.error().code)];
    const bool full = before.waiting >= config_.admission.max_queued;
    require(id.error().code != ErrorCode::kResourceExhausted || full,
            "refused with room in the queue");
  } else {
    require(user.max_tokens <= rest, "a request beyond the context was taken");
    users_.emplace(id->value, std::move(user));
    require(core_.statistics().waiting <= config_.admission.max_queued, "the queue is unbounded");
    if (random_.chance(cancel_probability_)) {
      const Nanoseconds delay = random_.below(
          static_cast<uint64_t>(random_.chance(0.5) ? 5 * kMillisecond : 300 * kMillisecond));
      at(delay, [this, id = id->value] { user_cancels(id); });
    }
  }
  after_step();
}

void World::user_cancels(uint64_t id) {
  User& user = users_.at(id);
  const bool over = user.finish != FinishReason::kNone;
  if (!over) user.cancelled = true;
  core_.cancel(RequestId{id}, now_);
  after_step();
  require(over || user.finish == FinishReason::kCancelled, "a cancel was not answered at once");
}

// The model: the next token follows from the prompt and the position alone.
int32_t World::true_token(const User& user, int index) const {
  uint64_t hash = 17;
  for (int32_t token : user.prompt) hash = Random(hash ^ static_cast<uint64_t>(token)).next();
  hash = Random(hash + static_cast<uint64_t>(index)).next();
  auto token = static_cast<int32_t>(hash % kVocab);
  if (token == kEos && index < user.sampling.min_tokens && !user.sampling.ignore_eos) ++token;
  return token;
}

void World::on_update(const CoreUpdate& update) {
  User& user = users_.at(update.id.value);
  const GenerationUpdate& news = update.update;
  require(user.finish == FinishReason::kNone, "an update after the last one");
  for (int32_t token : news.tokens) {
    require(token == true_token(user, static_cast<int>(user.tokens.size())),
            "a token is lost, doubled or wrong");
    user.tokens.push_back(token);
    ++tokens_seen_;
  }
  user.text += news.text;
  require(news.completion_tokens == static_cast<int>(user.tokens.size()), "completion_tokens");
  require(news.prompt_tokens == static_cast<int>(user.prompt.size()), "prompt_tokens");
  user.finish = news.finish;
  if (news.error && news.error->message.find("was not taken") != std::string::npos) {
    ++coverage_["handoff expired"];
  }
  if (news.finish != FinishReason::kNone) check_stream(user, news);
}

void World::check_stream(const User& user, const GenerationUpdate& last) const {
  const int count = static_cast<int>(user.tokens.size());
  std::string text;
  for (int32_t token : user.tokens) text += text_of_token(token);
  const bool at_eos = count > 0 && user.tokens.back() == kEos && !user.sampling.ignore_eos;
  require(count <= user.max_tokens, "more than max_tokens");
  switch (last.finish) {
    case FinishReason::kStop:
      require(at_eos && count > user.sampling.min_tokens, "stop without a reason");
      text.resize(text.size() - text_of_token(kEos).size());
      break;
    case FinishReason::kLength:
      require(count == user.max_tokens && !at_eos, "length");
      break;
    case FinishReason::kCancelled:
      require(user.cancelled, "cancelled by nobody");
      break;
    case FinishReason::kError:
      require(user.faulted && last.error.has_value(), "an error without a fault");
      break;
    case FinishReason::kNone:
      break;
  }
  require(user.text == text, "text");
}

void World::after_step() {
  for (const CoreUpdate& update : core_.take_updates()) on_update(update);
  for (AttentionServerId server : core_.take_wakeups()) {
    at(random_.between(0, 200) * kMicrosecond, [this, server] {
      server.phase == apk::Phase::kPrefill ? look_prefill(server.index) : look_decode(server.index);
    });
  }
  check_totals();
}

void World::check_totals() const {
  const EngineStatistics statistics = core_.statistics();
  require(statistics.kv_pages_used >= 0 && statistics.kv_pages_used <= statistics.kv_pages_total,
          "pages");
  int live = 0;
  for (const auto& [id, user] : users_) live += user.finish == FinishReason::kNone;
  require(statistics.running + statistics.waiting == live, "running + waiting is not who lives");
}

// --- the run ---

void World::run() {
  const bool drain = random_.chance(0.3);
  for (int i = 0; i < options_.requests; ++i) {
    at(arrival_gap_ * i + random_.between(0, 20) * kMillisecond, [this] { user_arrives(); });
  }
  const Nanoseconds calm_after = arrival_gap_ * options_.requests * (drain ? 1 : 2) / 2;
  at(calm_after, [this] { faults_ = false; });
  if (drain) {
    at(calm_after, [this] {
      ++coverage_["drain"];
      core_.stop_accepting();
      if (random_.chance(0.5)) return;
      for (auto& [id, user] : users_) user.cancelled |= user.finish == FinishReason::kNone;
      core_.cancel_all(now_);
      after_step();
    });
  }
  while (!events_.empty()) {
    const auto [time, order, action] = events_.top();
    events_.pop();
    now_ = time;
    (*action)();
    if (now_ > 3600 * kSecond) violate("does not come to an end");
  }
  for (const auto& [id, user] : users_) {
    if (user.finish == FinishReason::kNone) violate(fmt::format("request {} never ended", id));
  }
  require(core_.idle(), "something is still held");
  const EngineStatistics end = core_.statistics();
  require(end.kv_pages_used == 0 && end.handoff_slots_used == 0, "pages or slots leaked");
  require(end.running == 0 && end.waiting == 0, "counters leaked");
  require(end.finished_stop + end.finished_length + end.finished_cancelled + end.finished_error ==
              users_.size(),
          "requests counted twice or not at all");
  require(end.generation_tokens == tokens_seen_, "tokens counted wrongly");
  require(core_.complaints(now_ + kSecond, kMillisecond).find("not moved") == std::string::npos,
          "an idle server is called stuck");
}

}  // namespace expertplex
