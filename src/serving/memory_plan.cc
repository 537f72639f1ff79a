#include "serving/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace expertplex {
namespace {

// Of the available memory, what KV caches take when nobody says how much.
constexpr int64_t kKvShare = 4;

Error refused(const std::string& message) { return Error{ErrorCode::kInvalidArgument, message}; }

int64_t page_bytes_of_all_layers(const KvCacheShape& shape) {
  return static_cast<int64_t>(shape.page_bytes()) * shape.layer_count;
}

// "--option: expected LOW to HIGH, got VALUE": users know the fields of EngineConfig by the options
// that set them.
Result<void> in_range(const char* option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return refused(fmt::format("{}: expected {} to {}, got {}", option, low, high, value));
}

Result<void> check_sharing(const EngineConfig& config) {
  const SharingConfig& sharing = config.sharing;
  if (sharing.decode_clusters >= 1 && sharing.decode_clusters <= sharing.max_decode_clusters &&
      sharing.max_decode_clusters < config.moe_clusters) {
    return {};
  }
  return refused(
      fmt::format("sharing: expected 1 <= --decode-clusters <= --max-decode-clusters < "
                  "--moe-clusters ({}), got {} and {}",
                  config.moe_clusters, sharing.decode_clusters, sharing.max_decode_clusters));
}

Result<void> check_counts(const EngineConfig& config, const ModelSpec& spec) {
  EXPERTPLEX_TRY(in_range("--prefill-servers", config.prefill_servers, 1, 32));
  EXPERTPLEX_TRY(
      in_range("--decode-servers", config.decode_servers, 1, transport::kMaxDecodeParticipants));
  EXPERTPLEX_TRY(in_range("--moe-servers", config.moe_servers, 1, spec.expert_count));
  if (config.max_model_len < 0 || config.max_model_len > spec.max_position_count) {
    return refused(fmt::format("--max-model-len: expected at most {}, the model's context, got {}",
                               spec.max_position_count, config.max_model_len));
  }
  EXPERTPLEX_TRY(
      in_range("--max-prefill-tokens", config.max_prefill_tokens, kKvPageTokens, 1 << 20));
  EXPERTPLEX_TRY(in_range("--max-decode-batch", config.max_decode_batch, 1, 4096));
  EXPERTPLEX_TRY(in_range("--max-queued-requests", config.max_queued_requests, 1, 1 << 20));
  EXPERTPLEX_TRY(
      in_range("--kv-cache-bytes", config.kv_cache_bytes, 0, std::numeric_limits<int64_t>::max()));
  return in_range("wait_limit", config.wait_limit, 1, 24 * 3600 * kSecond);
}

// Pages per server for the two kinds of caches.
struct PageCounts {
  int prefill = 0, decode = 0;
};

Result<PageCounts> count_pages(const EngineConfig& config, const KvCacheShape& shape,
                               int max_model_len, int64_t available) {
  const int64_t page = page_bytes_of_all_layers(shape);
  const int64_t one = pages_for(max_model_len);  // of the longest request
  const int64_t servers = config.prefill_servers + config.decode_servers;
  if (config.kv_cache_bytes > 0) {
    const int64_t pages = std::min<int64_t>(config.kv_cache_bytes / page, 1 << 30);
    if (pages < one) {
      return refused(
          fmt::format("--kv-cache-bytes: one request of --max-model-len {} needs {} pages x {} "
                      "layers x {} bytes = "
                      "{}, got {}; give more, or a smaller --max-model-len",
                      max_model_len, one, shape.layer_count, shape.page_bytes(),
                      format_bytes(one * page), format_bytes(config.kv_cache_bytes)));
    }
    return PageCounts{static_cast<int>(pages), static_cast<int>(pages)};
  }
  const int64_t budget = available / kKvShare;
  if (one * page * servers > budget) {
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format("KV caches: one request of --max-model-len {} on each of {} attention "
                    "servers needs {} pages x {} layers x {} bytes x {} = {}, of {} "
                    "available a quarter ({}) may be used; choose a smaller --max-model-len "
                    "or give --kv-cache-bytes",
                    max_model_len, servers, one, shape.layer_count, shape.page_bytes(), servers,
                    format_bytes(one * page * servers), format_bytes(available),
                    format_bytes(budget))};
  }
  // Enough for a full decode batch of the longest requests, and for some prompts in prefill.
  const int64_t decode = one * config.max_decode_batch;
  const int64_t prefill =
      std::min(decode, std::max<int64_t>(4 * one, pages_for(2 * config.max_prefill_tokens)));
  const int64_t wanted = page * (decode * config.decode_servers + prefill * config.prefill_servers);
  const double scale = std::min(1.0, static_cast<double>(budget) / static_cast<double>(wanted));
  const auto scaled = [&](int64_t pages) {
    return static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(pages * scale), one, 1 << 30));
  };
  return PageCounts{scaled(prefill), scaled(decode)};
}

transport::KvWindowLayout window_of(const KvCacheShape& cache, int slots, int peers) {
  return {.layer_count = cache.layer_count,
          .page_count = cache.page_count,
          .page_bytes = cache.page_bytes(),
          .slot_count = slots,
          .peer_count = peers};
}

}  // namespace

Result<MemoryPlan> plan_memory(const EngineConfig& config, const ModelSpec& spec,
                               const ModelWeights& weights, const Backend& backend,
                               int64_t available) {
  EXPERTPLEX_TRY(check_counts(config, spec));
  EXPERTPLEX_TRY(check_sharing(config));
  MemoryPlan plan;
  plan.max_model_len = config.max_model_len > 0 ? config.max_model_len : spec.max_position_count;
  const KvCacheShape shape{.layer_count = spec.layer_count,
                           .kv_size = spec.kv_size(),
                           .type = backend.kv_cache_type(weights),
                           .page_count = 0};
  EXPERTPLEX_ASSIGN(const PageCounts pages,
                    count_pages(config, shape, plan.max_model_len, available));
  plan.prefill_cache = plan.decode_cache = shape;
  plan.prefill_cache.page_count = pages.prefill;
  plan.decode_cache.page_count = pages.decode;
  // Words exist per (peer, slot of the decode server); prefill windows answer every decode server.
  plan.prefill_window =
      window_of(plan.prefill_cache, config.max_decode_batch, config.decode_servers);
  plan.decode_window =
      window_of(plan.decode_cache, config.max_decode_batch, config.prefill_servers);
  // No iteration can be larger than the cache.
  plan.max_prefill_tokens = static_cast<int>(
      std::min<int64_t>(config.max_prefill_tokens / kKvPageTokens, pages.prefill) * kKvPageTokens);

  plan.moe_buffers = {.layer_count = spec.layer_count,
                      .expert_count = spec.expert_count,
                      .moe_server_count = config.moe_servers,
                      .top_k = spec.experts_per_token,
                      .dispatch_row_bytes = backend.dispatch_row_bytes(spec, config.activation),
                      .combine_row_bytes = backend.combine_row_bytes(spec, config.activation),
                      .decode_participants = config.decode_servers,
                      .max_decode_rows = config.max_decode_batch,
                      .microbatches = 1,
                      .prefill_senders = config.prefill_servers,
                      .max_prefill_tokens = plan.max_prefill_tokens,
                      .prefill_page_rows = backend.prefill_page_rows()};
  for (int server = 0; server < config.moe_servers; ++server) {
    EXPERTPLEX_ASSIGN(const auto layout,
                      transport::MoeBufferLayout::plan(plan.moe_buffers, server));
    plan.moe_window_bytes.push_back(static_cast<int64_t>(layout.total_bytes()));
    plan.moe_bytes += plan.moe_window_bytes.back();
  }
  plan.kv_bytes = static_cast<int64_t>(plan.prefill_window.total_bytes()) * config.prefill_servers +
                  static_cast<int64_t>(plan.decode_window.total_bytes()) * config.decode_servers;
  if (plan.total_bytes() > available) {
    std::string sum;
    for (const std::string& line : plan.lines(config)) sum += "\n  " + line;
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("the configuration does not fit: {} are needed, {} are available:{}",
                             format_bytes(plan.total_bytes()), format_bytes(available), sum)};
  }
  return plan;
}

std::vector<std::string> MemoryPlan::lines(const EngineConfig& config) const {
  const auto cache_line = [](const char* phase, int servers, const KvCacheShape& cache,
                             const transport::KvWindowLayout& window) {
    return fmt::format("{} KV cache: {} x {} pages x {} layers x {} bytes = {} ({} tokens each)",
                       phase, servers, cache.page_count, cache.layer_count, cache.page_bytes(),
                       format_bytes(static_cast<int64_t>(window.total_bytes()) * servers),
                       int64_t{cache.page_count} * kKvPageTokens);
  };
  return {
      cache_line("prefill", config.prefill_servers, prefill_cache, prefill_window),
      cache_line("decode", config.decode_servers, decode_cache, decode_window),
      fmt::format("MoE buffers: {} servers, at most {} decode rows from each of {} and {} prefill "
                  "tokens from each of {} = {}",
                  config.moe_servers, config.max_decode_batch, config.decode_servers,
                  max_prefill_tokens, config.prefill_servers, format_bytes(moe_bytes)),
      fmt::format("windows in all: {}", format_bytes(total_bytes())),
  };
}

int64_t available_memory_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kibibytes = 0;
    if (words >> key >> kibibytes && key == "MemAvailable:") available = kibibytes * 1024;
  }
  int64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, std::max<int64_t>(limit - used, 0));
  }
  return available;
}

std::string format_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < (int64_t{1} << 10)) return fmt::format("{} B", bytes);
  if (bytes < (int64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / (1 << 10));
  if (bytes < (int64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

}  // namespace expertplex
