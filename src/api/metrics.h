// What the API counts itself, and the text of /metrics (Prometheus exposition format 0.0.4). Names
// are `expertplex:` with vLLM's suffixes where the meaning is the same, so that dashboards port by
// replacing the prefix. Seconds and bytes only; labels are never per request.
//
// Thread rules: io thread only.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "api/http_types.h"
#include "serving/engine.h"

namespace expertplex {

class ApiMetrics {
 public:
  ApiMetrics();

  // Chooses the buckets of max_tokens; before the first on_generation.
  void set_max_model_len(int max_model_len);
  void on_http(const HttpRecord& record);
  void on_generation(int n, int max_tokens);

  const std::map<std::pair<std::string, int>, uint64_t>& http_requests() const { return requests_; }
  const std::map<std::string, Histogram>& http_seconds() const { return seconds_; }
  const Histogram& params_n() const { return params_n_; }
  const Histogram& params_max_tokens() const { return params_max_tokens_; }

 private:
  std::map<std::pair<std::string, int>, uint64_t> requests_;  // by route and status
  std::map<std::string, Histogram> seconds_;                  // by route
  Histogram params_n_;
  Histogram params_max_tokens_;
};

struct MetricsInput {
  std::string model_name;
  const ApiMetrics* api = nullptr;
  const EngineStatistics* engine = nullptr;  // null while the model is being loaded
  int open_connections = 0;
};

std::string render_metrics(const MetricsInput& input);

}  // namespace expertplex
