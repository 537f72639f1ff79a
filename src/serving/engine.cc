#include "serving/engine.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "base/log.h"
#include "serving/decode_server.h"
#include "serving/engine_hub.h"
#include "serving/memory_plan.h"
#include "serving/prefill_server.h"
#include "transport/in_process_fabric.h"

namespace expertplex {
namespace {

// How long a stopping MoE server may take for operations that are ready.
constexpr Nanoseconds kMoeStopLimit = 2 * kSecond;
// After drain has cancelled what was left, how long it waits for iterations to end and pages to
// come back.
constexpr Nanoseconds kCancelLimit = 10 * kSecond;

class TokenizerStream final : public TextStream {
 public:
  TokenizerStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
      : decoder_(std::move(tokenizer), skip_special) {}
  std::string push(int32_t token) override { return decoder_.push(token); }
  std::string finish() override { return decoder_.finish(); }

 private:
  IncrementalDecoder decoder_;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineConfig& config, const ModelSpec& spec, MemoryPlan plan,
             std::shared_ptr<const Tokenizer> tokenizer, std::string backend_name);
  ~EngineImpl() override;

  Result<void> build(Backend& backend, const std::shared_ptr<const ModelWeights>& weights);

  Result<RequestId> submit(GenerationRequest request,
                           std::shared_ptr<GenerationSink> sink) override;
  Result<std::vector<RequestId>> submit_all(std::vector<Submission> submissions) override;
  void cancel(RequestId id) override;
  Result<void> drain(Nanoseconds limit) override;
  EngineStatistics statistics() const override;
  Health health() const override;
  int max_model_len() const override { return plan_.max_model_len; }
  Json describe() const override;

 private:
  EngineCoreConfig core_config() const;
  Result<void> build_windows();
  Result<void> build_moe_servers(Backend& backend,
                                 const std::shared_ptr<const ModelWeights>& weights);
  Result<std::unique_ptr<AttentionExecutor>> make_executor(
      Backend& backend, const std::shared_ptr<const ModelWeights>& weights, apk::Phase phase,
      int index);
  Result<void> build_prefill_server(Backend& backend,
                                    const std::shared_ptr<const ModelWeights>& weights, int index);
  Result<void> build_decode_server(Backend& backend,
                                   const std::shared_ptr<const ModelWeights>& weights, int index);

  const EngineConfig config_;
  const ModelSpec spec_;
  const MemoryPlan plan_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::string backend_name_;
  std::atomic<uint64_t> next_seed_;

  // Torn down in the opposite order: attention servers, MoE servers, windows.
  transport::InProcessFabric fabric_;
  EngineHub hub_;
  std::vector<std::shared_ptr<transport::Window>> prefill_windows_, decode_windows_;
  std::vector<std::string> moe_window_names_;
  std::vector<std::unique_ptr<MoeExecutor>> moe_servers_;
  int moe_servers_started_ = 0;
  std::vector<std::unique_ptr<PrefillServer>> prefill_servers_;
  std::vector<std::unique_ptr<DecodeServer>> decode_servers_;
};

EngineImpl::EngineImpl(const EngineConfig& config, const ModelSpec& spec, MemoryPlan plan,
                       std::shared_ptr<const Tokenizer> tokenizer, std::string backend_name)
    : config_(config),
      spec_(spec),
      plan_(std::move(plan)),
      tokenizer_(std::move(tokenizer)),
      backend_name_(std::move(backend_name)),
      next_seed_((uint64_t{std::random_device{}()} << 32) | std::random_device{}()),
      hub_(core_config()) {}

EngineCoreConfig EngineImpl::core_config() const {
  return {.admission = {.prefill_servers = config_.prefill_servers,
                        .decode_servers = config_.decode_servers,
                        .prefill_pages = plan_.prefill_cache.page_count,
                        .decode_pages = plan_.decode_cache.page_count,
                        .decode_seats = config_.max_decode_batch,
                        .handoff_slots = config_.max_decode_batch,
                        .max_queued = config_.max_queued_requests},
          .max_prefill_tokens = plan_.max_prefill_tokens,
          .max_decode_batch = config_.max_decode_batch,
          .max_model_len = plan_.max_model_len,
          .vocab_size = spec_.vocab_size,
          .eos_tokens = spec_.eos_token_ids,
          .handoff_limit = config_.wait_limit};
}

Result<void> EngineImpl::build(Backend& backend,
                               const std::shared_ptr<const ModelWeights>& weights) {
  EXPERTPLEX_TRY(build_windows());
  EXPERTPLEX_TRY(build_moe_servers(backend, weights));
  for (int i = 0; i < config_.prefill_servers; ++i) {
    EXPERTPLEX_TRY(build_prefill_server(backend, weights, i));
  }
  for (int i = 0; i < config_.decode_servers; ++i) {
    EXPERTPLEX_TRY(build_decode_server(backend, weights, i));
  }
  for (auto& server : moe_servers_) {
    EXPERTPLEX_TRY(server->start());
    ++moe_servers_started_;
  }
  for (auto& server : prefill_servers_) server->start();
  for (auto& server : decode_servers_) server->start();
  return {};
}

Result<void> EngineImpl::build_windows() {
  for (int i = 0; i < config_.prefill_servers; ++i) {
    EXPERTPLEX_ASSIGN(auto window, fabric_.create_window(fmt::format("prefill-{}", i),
                                                         plan_.prefill_window.total_bytes(), 1));
    prefill_windows_.push_back(std::move(window));
  }
  for (int i = 0; i < config_.decode_servers; ++i) {
    EXPERTPLEX_ASSIGN(auto window, fabric_.create_window(fmt::format("decode-{}", i),
                                                         plan_.decode_window.total_bytes(), 1));
    decode_windows_.push_back(std::move(window));
  }
  return {};
}

Result<void> EngineImpl::build_moe_servers(Backend& backend,
                                           const std::shared_ptr<const ModelWeights>& weights) {
  for (int i = 0; i < config_.moe_servers; ++i) {
    moe_window_names_.push_back(fmt::format("moe-{}", i));
    const MoeServerConfig server{.index = i,
                                 .window_name = moe_window_names_.back(),
                                 .buffers = plan_.moe_buffers,
                                 .cluster_count = config_.moe_clusters,
                                 .activation = config_.activation,
                                 .sharing = config_.sharing,
                                 .wait_limit = config_.wait_limit};
    EXPERTPLEX_ASSIGN(auto executor, backend.create_moe_executor(fabric_, server, spec_, weights));
    moe_servers_.push_back(std::move(executor));
  }
  return {};
}

Result<std::unique_ptr<AttentionExecutor>> EngineImpl::make_executor(
    Backend& backend, const std::shared_ptr<const ModelWeights>& weights, apk::Phase phase,
    int index) {
  const bool prefill = phase == apk::Phase::kPrefill;
  const auto& window = prefill ? prefill_windows_[index] : decode_windows_[index];
  const auto& layout = prefill ? plan_.prefill_window : plan_.decode_window;
  AttentionServerConfig server;
  server.phase = phase;
  server.index = index;
  server.name = fmt::format("{} attention server {}", apk::phase_name(phase), index);
  server.moe.phase = prefill ? transport::MoePhase::kPrefill : transport::MoePhase::kDecode;
  server.moe.member = index;
  server.moe.name = server.name;
  server.moe.moe_windows = moe_window_names_;
  server.moe.buffers = plan_.moe_buffers;
  server.moe.wait_limit = config_.wait_limit;
  server.kv_cache = prefill ? plan_.prefill_cache : plan_.decode_cache;
  server.kv_cache_data = window->local_data() + layout.page_offset(0, 0);
  server.max_rows = prefill ? plan_.max_prefill_tokens : config_.max_decode_batch;
  server.activation = config_.activation;
  return backend.create_attention_executor(fabric_, server, spec_, weights);
}

Result<void> EngineImpl::build_prefill_server(Backend& backend,
                                              const std::shared_ptr<const ModelWeights>& weights,
                                              int index) {
  PrefillServer::Parts parts;
  parts.index = index;
  parts.name = fmt::format("prefill attention server {}", index);
  parts.window = prefill_windows_[index];
  EXPERTPLEX_ASSIGN(parts.executor, make_executor(backend, weights, apk::Phase::kPrefill, index));
  for (int d = 0; d < config_.decode_servers; ++d) {
    parts.senders.emplace_back(prefill_windows_[index], plan_.prefill_window, d, decode_windows_[d],
                               plan_.decode_window, index);
  }
  parts.niceness = backend.prefill_thread_niceness();
  prefill_servers_.push_back(std::make_unique<PrefillServer>(std::move(parts), hub_));
  return {};
}

Result<void> EngineImpl::build_decode_server(Backend& backend,
                                             const std::shared_ptr<const ModelWeights>& weights,
                                             int index) {
  DecodeServer::Parts parts;
  parts.index = index;
  parts.name = fmt::format("decode attention server {}", index);
  parts.window = decode_windows_[index];
  EXPERTPLEX_ASSIGN(parts.executor, make_executor(backend, weights, apk::Phase::kDecode, index));
  for (int p = 0; p < config_.prefill_servers; ++p) {
    parts.receivers.emplace_back(decode_windows_[index], plan_.decode_window, p,
                                 prefill_windows_[p], plan_.prefill_window, index);
  }
  decode_servers_.push_back(std::make_unique<DecodeServer>(std::move(parts), hub_));
  return {};
}

EngineImpl::~EngineImpl() {
  hub_.step([](EngineCore& core) {
    core.stop_accepting();
    core.cancel_all(now_ns());
  });
  // All at once: members of the decode group wait for each other.
  for (auto& server : prefill_servers_) server->request_stop();
  for (auto& server : decode_servers_) server->request_stop();
  prefill_servers_.clear();
  decode_servers_.clear();
  for (int i = 0; i < moe_servers_started_; ++i) {
    if (const auto stopped = moe_servers_[i]->stop(kMoeStopLimit); !stopped) {
      log_debug("MoE server: {}", stopped.error().message);
    }
  }
}

Result<RequestId> EngineImpl::submit(GenerationRequest request,
                                     std::shared_ptr<GenerationSink> sink) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(sink)});
  EXPERTPLEX_ASSIGN(const std::vector<RequestId> ids, submit_all(std::move(one)));
  return ids.front();
}

Result<std::vector<RequestId>> EngineImpl::submit_all(std::vector<Submission> submissions) {
  const Nanoseconds now = now_ns();
  std::vector<NewRequest> requests;
  std::vector<std::shared_ptr<GenerationSink>> sinks;
  requests.reserve(submissions.size());
  for (auto& [request, sink] : submissions) {
    if (request.accepted_at == 0) request.accepted_at = now;
    if (!request.sampling.seed) request.sampling.seed = next_seed_.fetch_add(1);
    auto text = std::make_unique<TokenizerStream>(tokenizer_, request.sampling.skip_special_tokens);
    requests.push_back({std::move(request), std::move(text)});
    sinks.push_back(std::move(sink));
  }
  return hub_.submit_all(std::move(requests), std::move(sinks), now);
}

void EngineImpl::cancel(RequestId id) {
  hub_.step([&](EngineCore& core) { core.cancel(id, now_ns()); });
}

Result<void> EngineImpl::drain(Nanoseconds limit) {
  hub_.step([](EngineCore& core) { core.stop_accepting(); });
  if (hub_.wait_idle(limit)) return {};
  const int left = hub_.step([](EngineCore& core) {
    const EngineStatistics now = core.statistics();
    core.cancel_all(now_ns());
    return now.running + now.waiting;
  });
  const bool idle = hub_.wait_idle(kCancelLimit);
  return make_error(ErrorCode::kDeadlineExceeded,
                    "{} requests were not finished within {:.1f} s and were cancelled{}", left,
                    to_seconds(limit), idle ? "" : "; some still hold pages");
}

EngineStatistics EngineImpl::statistics() const {
  EngineStatistics statistics = hub_.look([](const EngineCore& core) { return core.statistics(); });
  for (const auto& server : moe_servers_) statistics.moe.push_back(server->statistics());
  return statistics;
}

Health EngineImpl::health() const {
  const std::string complaints = hub_.look(
      [&](const EngineCore& core) { return core.complaints(now_ns(), config_.wait_limit); });
  return {.healthy = complaints.empty(), .detail = complaints};
}

Json EngineImpl::describe() const {
  Json memory = Json::array();
  for (const std::string& line : plan_.lines(config_)) memory.push_back(line);
  return {
      {"model", spec_.name},
      {"backend", backend_name_},
      {"layout",
       {{"prefill_servers", config_.prefill_servers},
        {"decode_servers", config_.decode_servers},
        {"moe_servers", config_.moe_servers},
        {"moe_clusters", config_.moe_clusters}}},
      {"sharing",
       {{"preemption", config_.sharing.preemption},
        {"decode_clusters", config_.sharing.decode_clusters},
        {"max_decode_clusters", config_.sharing.max_decode_clusters},
        {"expected_x_moe", config_.sharing.expected_x_moe}}},
      {"moe_activation", config_.activation == MoeActivation::kFp8 ? "fp8" : "native"},
      {"max_model_len", plan_.max_model_len},
      {"max_prefill_tokens", plan_.max_prefill_tokens},
      {"max_decode_batch", config_.max_decode_batch},
      {"max_queued_requests", config_.max_queued_requests},
      {"kv_page_tokens", kKvPageTokens},
      {"kv_pages",
       {{"prefill", plan_.prefill_cache.page_count}, {"decode", plan_.decode_cache.page_count}}},
      {"kv_bytes", plan_.kv_bytes},
      {"moe_buffer_bytes", plan_.moe_bytes},
      {"memory", memory}};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& requested, const ModelSpec& spec,
                                               std::shared_ptr<const ModelWeights> weights,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               Backend& backend) {
  EngineConfig config = requested;
  if (config.moe_clusters == 0) config.moe_clusters = std::max(2, backend.default_moe_clusters());
  EXPERTPLEX_ASSIGN(MemoryPlan plan,
                    plan_memory(config, spec, *weights, backend, available_memory_bytes()));
  log_info("{} on {}: {} prefill and {} decode attention servers, {} MoE servers with {} clusters",
           spec.name, backend.name(), config.prefill_servers, config.decode_servers,
           config.moe_servers, config.moe_clusters);
  for (const std::string& line : plan.lines(config)) log_info("{}", line);
  auto engine = std::make_unique<EngineImpl>(config, spec, std::move(plan), std::move(tokenizer),
                                             backend.name());
  EXPERTPLEX_TRY(engine->build(backend, weights));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace expertplex
