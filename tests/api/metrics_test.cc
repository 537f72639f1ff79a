// /metrics against a small parser of the exposition format: every sample belongs to a family with
// HELP and TYPE, counters end in _total, buckets are cumulative and end in +Inf.
#include "api/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "api/fake_engine.h"
#include "api/prometheus_writer.h"

namespace expertplex {
namespace {

struct Family {
  std::string type;
  bool has_help = false;
  std::vector<std::pair<std::string, double>> samples;  // name with labels
};

// Also checks the format line by line.
std::map<std::string, Family> parse(const std::string& text) {
  static const std::regex sample_line(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? (-?[0-9.e+-]+|[+-]Inf|NaN))re");
  std::map<std::string, Family> families;
  std::istringstream lines(text);
  std::string current;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, rest;
    if (line.starts_with("#")) {
      words >> hash >> kind >> name >> rest;
      if (kind == "HELP") {
        EXPECT_FALSE(families.count(name)) << "twice: " << name;
        families[name].has_help = !rest.empty();
      } else {
        EXPECT_EQ(kind, "TYPE");
        families[name].type = rest;
      }
      current = name;
      continue;
    }
    std::smatch match;
    EXPECT_TRUE(std::regex_match(line, match, sample_line)) << line;
    const std::string sample = match[1];
    EXPECT_TRUE(sample.starts_with(current)) << line << " stands under " << current;
    families[current].samples.emplace_back(std::string(match[1]) + std::string(match[2]),
                                           std::atof(std::string(match[5]).c_str()));
  }
  return families;
}

std::string metrics_text() {
  testing::FakeEngine engine;
  const EngineStatistics statistics = engine.statistics();
  ApiMetrics api;
  api.set_max_model_len(100);
  api.on_http({"/v1/models/{id}", 200, 0.004});
  api.on_http({"/v1/models/{id}", 404, 0.004});
  api.on_http({"/v1/completions", 499, 3});
  api.on_generation(2, 50);
  return render_metrics({"a \"model\"", &api, &statistics, 5});
}

TEST(Metrics, EveryFamilyIsWellFormed) {
  const auto families = parse(metrics_text());
  EXPECT_GT(families.size(), 25u);
  for (const auto& [name, family] : families) {
    EXPECT_TRUE(name.starts_with("expertplex:")) << name;
    EXPECT_TRUE(family.has_help) << name;
    EXPECT_TRUE(family.type == "counter" || family.type == "gauge" || family.type == "histogram")
        << name;
    if (family.type != "histogram") {
      EXPECT_EQ(name.ends_with("_total"), family.type == "counter") << name;
    }
    EXPECT_FALSE(family.samples.empty()) << name;
    for (const auto& [sample, value] : family.samples) {
      EXPECT_NE(sample.find(R"(model_name="a \"model\"",engine="0")"), std::string::npos) << sample;
    }
  }
}

TEST(Metrics, HistogramsAreCumulative) {
  for (const auto& [name, family] : parse(metrics_text())) {
    if (family.type != "histogram") continue;
    double last = 0, infinite = -1;
    for (const auto& [sample, value] : family.samples) {
      if (sample.find("_bucket") != std::string::npos) {
        EXPECT_GE(value, last) << sample;
        last = value;
        if (sample.find("le=\"+Inf\"") != std::string::npos) {
          infinite = value;
          last = 0;
        }
      } else if (sample.find("_count") != std::string::npos) {
        EXPECT_EQ(value, infinite) << sample;
      }
    }
    EXPECT_GE(infinite, 0) << name;
  }
}

TEST(Metrics, ValuesAreWhereDashboardsLook) {
  const std::string text = metrics_text();
  const std::string labels = R"({model_name="a \"model\"",engine="0")";
  const auto has = [&](const std::string& line) {
    EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << line << "\n" << text;
  };
  has("expertplex:num_requests_running" + labels + "} 0");
  has("expertplex:kv_pages" + labels + "} 100");
  has("expertplex:handoff_slots_used" + labels + "} 0");
  has("expertplex:request_success_total" + labels + R"(,finished_reason="abort"} 0)");
  has("expertplex:time_to_first_token_seconds_bucket" + labels + R"(,le="0.5"} 3)");
  has("expertplex:time_to_first_token_seconds_bucket" + labels + R"(,le="2.0"} 3)");
  has("expertplex:time_to_first_token_seconds_bucket" + labels + R"(,le="+Inf"} 4)");
  has("expertplex:time_to_first_token_seconds_sum" + labels + "} 7.25");
  has("expertplex:time_to_first_token_seconds_count" + labels + "} 4");
  has("expertplex:moe_tiles_total" + labels + R"(,phase="decode",server="1"} 42)");
  has("expertplex:moe_preemptions_total" + labels + R"(,server="1"} 3)");
  has("expertplex:http_requests_total" + labels + R"(,route="/v1/models/{id}",status="404"} 1)");
  has("expertplex:http_requests_total" + labels + R"(,route="/v1/completions",status="499"} 1)");
  has("expertplex:request_params_n_sum" + labels + "} 2");
  has("expertplex:request_params_max_tokens_bucket" + labels + R"(,le="50.0"} 1)");
  has("expertplex:http_open_connections" + labels + "} 5");
}

TEST(Metrics, WithoutAnEngineOnlyTheApisOwn) {
  ApiMetrics api;
  const auto families = parse(render_metrics({"", &api, nullptr, 0}));
  EXPECT_TRUE(families.count("expertplex:http_open_connections"));
  EXPECT_FALSE(families.count("expertplex:num_requests_running"));
}

}  // namespace
}  // namespace expertplex
