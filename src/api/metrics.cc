#include "api/metrics.h"

#include <utility>

#include "api/prometheus_writer.h"

namespace expertplex {
namespace {

Histogram make_histogram(std::vector<double> bounds) {
  Histogram histogram;
  histogram.counts.assign(bounds.size() + 1, 0);
  histogram.bounds = std::move(bounds);
  return histogram;
}

// 1, 2, 5, 10, 20, ... up to `highest`.
std::vector<double> one_two_five(int highest) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= highest; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (step * decade <= highest) bounds.push_back(static_cast<double>(step * decade));
    }
  }
  return bounds;
}

void write_api(PrometheusWriter& out, const MetricsInput& input) {
  out.gauge("http_open_connections", input.open_connections, "Client connections open now.");
  out.family("http_requests_total", "counter",
             "HTTP requests by route and status; 499: the client went away first.");
  for (const auto& [key, count] : input.api->http_requests()) {
    out.sample(static_cast<double>(count),
               {{"route", key.first}, {"status", std::to_string(key.second)}});
  }
  out.family("http_request_duration_seconds", "histogram",
             "From a request's first byte in to its answer's last byte out.");
  for (const auto& [route, histogram] : input.api->http_seconds()) {
    out.histogram(histogram, {{"route", route}});
  }
  out.histogram("request_params_n", input.api->params_n(), "The request parameter n.");
  out.histogram("request_params_max_tokens", input.api->params_max_tokens(),
                "The request parameter max_tokens, where given.");
}

void write_requests(PrometheusWriter& out, const EngineStatistics& engine) {
  out.gauge("num_requests_running", engine.running, "Requests in prefill or decode now.");
  out.gauge("num_requests_waiting", engine.waiting, "Requests in the queue now.");
  const double total = static_cast<double>(engine.kv_pages_total);
  out.gauge("kv_cache_usage_perc",
            total > 0 ? static_cast<double>(engine.kv_pages_used) / total : 0,
            "Share of the KV pages in use; 1 means all.");
  out.gauge("kv_pages_used", static_cast<double>(engine.kv_pages_used), "KV pages in use now.");
  out.gauge("kv_pages", total, "KV pages of all attention servers.");
  out.gauge("handoff_slots_used", engine.handoff_slots_used,
            "KV handoffs from prefill to decode servers that are open now.");
  out.counter("prompt_tokens_total", static_cast<double>(engine.prompt_tokens),
              "Prompt tokens prefilled.");
  out.counter("generation_tokens_total", static_cast<double>(engine.generation_tokens),
              "Tokens generated.");
  out.family("request_success_total", "counter", "Requests that ended, by reason.");
  const std::pair<const char*, uint64_t> reasons[] = {{"stop", engine.finished_stop},
                                                      {"length", engine.finished_length},
                                                      {"abort", engine.finished_cancelled},
                                                      {"error", engine.finished_error}};
  for (const auto& [reason, count] : reasons) {
    out.sample(static_cast<double>(count), {{"finished_reason", reason}});
  }
  out.counter("requests_rejected_total", static_cast<double>(engine.rejected_queue_full),
              "Requests refused with 429 because the queue was full.");
}

void write_latencies(PrometheusWriter& out, const EngineStatistics& engine) {
  out.histogram("time_to_first_token_seconds", engine.ttft_seconds,
                "From the request's first byte on the socket to its first token.");
  out.histogram("inter_token_latency_seconds", engine.itl_seconds,
                "Between consecutive tokens of a request.");
  out.histogram("request_time_per_output_token_seconds", engine.tpot_seconds,
                "Per request, the mean time per token after the first.");
  out.histogram("e2e_request_latency_seconds", engine.e2e_seconds,
                "From the request's first byte on the socket to its last token.");
  out.histogram("request_queue_time_seconds", engine.queue_seconds,
                "Waiting for a prefill server.");
  out.histogram("request_prefill_time_seconds", engine.prefill_seconds,
                "From the start of prefill to the first token.");
  out.histogram("request_decode_time_seconds", engine.decode_seconds,
                "From the first token to the last.");
  out.histogram("request_prompt_tokens", engine.prompt_length, "Prompt lengths.");
  out.histogram("request_generation_tokens", engine.generation_length, "Answer lengths.");
  out.histogram("iteration_tokens_total", engine.iteration_tokens, "Tokens per iteration.");
}

void write_moe(PrometheusWriter& out, const EngineStatistics& engine) {
  out.family("iterations_total", "counter", "Attention server iterations by phase.");
  out.sample(static_cast<double>(engine.prefill_iterations), {{"phase", "prefill"}});
  out.sample(static_cast<double>(engine.decode_iterations), {{"phase", "decode"}});
  // One family: (server's statistics, phase) -> value.
  const auto by_phase = [&](std::string_view name, std::string_view help,
                            uint64_t MoeStatistics::*prefill, uint64_t MoeStatistics::*decode) {
    out.family(name, "counter", help);
    for (size_t i = 0; i < engine.moe.size(); ++i) {
      const std::string server = std::to_string(i);
      out.sample(static_cast<double>(engine.moe[i].*prefill),
                 {{"phase", "prefill"}, {"server", server}});
      out.sample(static_cast<double>(engine.moe[i].*decode),
                 {{"phase", "decode"}, {"server", server}});
    }
  };
  const auto by_server = [&](std::string_view name, std::string_view type, std::string_view help,
                             auto value) {
    out.family(name, type, help);
    for (size_t i = 0; i < engine.moe.size(); ++i) {
      out.sample(static_cast<double>(engine.moe[i].*value), {{"server", std::to_string(i)}});
    }
  };
  by_phase("moe_tiles_total", "Expert tiles computed, by phase and MoE server.",
           &MoeStatistics::prefill_tiles, &MoeStatistics::decode_tiles);
  by_phase("moe_operations_total", "MoE operations completed, by phase and MoE server.",
           &MoeStatistics::prefill_operations, &MoeStatistics::decode_operations);
  by_server("moe_preemptions_total", "counter",
            "Times that a cluster left unfinished prefill work for a decode operation.",
            &MoeStatistics::preemptions);
  by_server("moe_open_operations", "gauge", "Operations ready or running now.",
            &MoeStatistics::open_operations);
  by_server("moe_waits_timed_out_total", "counter", "Waits that reached their limit.",
            &MoeStatistics::waits_timed_out);
  by_server("moe_decode_footprint_mean", "gauge", "Mean executed tiles of a decode operation.",
            &MoeStatistics::x_moe_decode_mean);
}

}  // namespace

ApiMetrics::ApiMetrics()
    : params_n_(make_histogram({1, 2, 5, 10, 20})), params_max_tokens_(make_histogram({})) {}

void ApiMetrics::set_max_model_len(int max_model_len) {
  params_max_tokens_ = make_histogram(one_two_five(max_model_len));
}

void ApiMetrics::on_http(const HttpRecord& record) {
  ++requests_[{record.route, record.status}];
  auto it = seconds_.find(record.route);
  if (it == seconds_.end()) {
    it = seconds_.emplace(record.route, make_histogram({0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60}))
             .first;
  }
  it->second.observe(record.seconds);
}

void ApiMetrics::on_generation(int n, int max_tokens) {
  params_n_.observe(n);
  if (max_tokens > 0) params_max_tokens_.observe(max_tokens);
}

std::string render_metrics(const MetricsInput& input) {
  PrometheusWriter out("expertplex:", {{"model_name", input.model_name}, {"engine", "0"}});
  out.family("build_info", "gauge", "1, with the version of this server.");
  out.sample(1, {{"version", EXPERTPLEX_VERSION}});
  write_api(out, input);
  if (input.engine) {
    write_requests(out, *input.engine);
    write_latencies(out, *input.engine);
    write_moe(out, *input.engine);
  }
  return out.take();
}

}  // namespace expertplex
