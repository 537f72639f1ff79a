#include "bench/cpu_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/random.h"
#include "bench/load_client.h"
#include "bench/server_process.h"
#include "bench/statistics.h"
#include "bench/summary.h"

namespace expertplex::bench {
namespace {

constexpr Nanoseconds kLimit = 120 * kSecond;
constexpr int kRunningStreams = 8;
constexpr int kPrefillTokens = 1500;
constexpr int kPrefills = 8;

// Random ids from the middle of the vocabulary: no special tokens, every expert gets rows.
std::vector<int32_t> random_prompt(Random& random, int tokens) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (auto& id : prompt) id = static_cast<int32_t>(random.between(300, 3999));
  return prompt;
}

std::vector<StreamRequest> random_requests(Random& random, int count, int prompt, int output) {
  std::vector<StreamRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back({random_prompt(random, prompt), output, 0});
  return requests;
}

Result<void> check_lengths(const std::vector<StreamResult>& results,
                           const std::vector<StreamRequest>& requests) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].completion_tokens != requests[i].max_tokens) {
      return make_error(ErrorCode::kInternal, "stream {}: expected {} tokens, got {}", i,
                        requests[i].max_tokens, results[i].completion_tokens);
    }
  }
  return {};
}

class CpuBench {
 public:
  CpuBench(const CpuBenchOptions& options, const ServerProcess& server)
      : options_(options), server_(server) {}

  Result<std::vector<StreamResult>> run(const std::vector<StreamRequest>& requests) const {
    EXPERTPLEX_ASSIGN(auto results, run_streams(server_.host(), server_.port(), requests, kLimit));
    EXPERTPLEX_TRY(check_lengths(results, requests));
    return results;
  }

  // Output tokens over the time from the first byte sent to the last received.
  Result<Spread> tokens_per_second(int streams, int prompt, int output) const {
    std::vector<double> samples;
    for (int repetition = -1; repetition < options_.repetitions; ++repetition) {
      Random random(static_cast<uint64_t>(100 + repetition));
      const auto requests = random_requests(random, streams, prompt, output);
      EXPERTPLEX_ASSIGN(const auto results, run(requests));
      Nanoseconds begin = results[0].sent, end = 0;
      for (const auto& result : results) {
        begin = std::min(begin, result.sent);
        end = std::max(end, result.done);
      }
      if (repetition >= 0) samples.push_back(streams * output / to_seconds(end - begin));
    }
    return spread(samples);
  }

  Result<Spread> ttft_milliseconds(int prompt) const {
    std::vector<double> samples;
    for (int repetition = -2; repetition < 4 * options_.repetitions; ++repetition) {
      Random random(static_cast<uint64_t>(200 + repetition));
      EXPERTPLEX_ASSIGN(const auto results, run(random_requests(random, 1, prompt, 1)));
      if (repetition >= 0) samples.push_back(to_milliseconds(results[0].ttft()));
    }
    return spread(samples);
  }

  struct Interference {
    std::vector<double> idle_ms, busy_ms;  // inter-token latencies outside and inside prefills
    std::vector<double> prefill_ms;
    std::vector<std::string> texts;  // of the running streams: must not depend on anything
  };

  // Eight streams run; with `prefills`, long prompts arrive one after the other meanwhile.
  Result<Interference> interference(bool prefills) const {
    Random random(300);
    auto requests = random_requests(random, kRunningStreams, 64, 1000);
    for (int i = 0; prefills && i < kPrefills; ++i) {
      requests.push_back(
          {random_prompt(random, kPrefillTokens), 1, 500 * kMillisecond + i * 600 * kMillisecond});
    }
    EXPERTPLEX_ASSIGN(const auto results, run(requests));
    Interference out;
    for (size_t i = kRunningStreams; i < results.size(); ++i) {
      out.prefill_ms.push_back(to_milliseconds(results[i].ttft()));
    }
    for (size_t i = 0; i < kRunningStreams; ++i) {
      out.texts.push_back(results[i].text);
      collect_latencies(results, results[i].chunk_at, out);
    }
    return out;
  }

 private:
  static void collect_latencies(const std::vector<StreamResult>& results,
                                const std::vector<Nanoseconds>& chunk_at, Interference& out) {
    for (size_t c = 8; c + 1 < chunk_at.size(); ++c) {
      const Nanoseconds from = chunk_at[c], to = chunk_at[c + 1];
      const bool busy = std::any_of(
          results.begin() + kRunningStreams, results.end(),
          [&](const StreamResult& r) { return from < r.chunk_at.front() && to > r.sent; });
      (busy ? out.busy_ms : out.idle_ms).push_back(to_milliseconds(to - from));
    }
  }

  const CpuBenchOptions& options_;
  const ServerProcess& server_;
};

void print(const char* what, const Spread& s, const char* unit) {
  fmt::print("{:<52} {:>9.2f} {:<6} ({:.2f} .. {:.2f})\n", what, s.median, unit, s.low, s.high);
}

void print_interference(const char* what, const CpuBench::Interference& i, double idle_p99) {
  fmt::print(
      "{:<52} {:>9.2f} ms     p50 {:.2f} ms, p99 {:.2f}x idle, {} samples, prefill {:.0f} ms\n",
      what, quantile(i.busy_ms, 0.99), quantile(i.busy_ms, 0.5),
      quantile(i.busy_ms, 0.99) / idle_p99, i.busy_ms.size(), quantile(i.prefill_ms, 0.5));
}

Result<std::unique_ptr<ServerProcess>> start_server(const CpuBenchOptions& options,
                                                    std::vector<std::string> arguments) {
  // The name that the load client asks for, whatever the model.
  arguments.insert(arguments.end(), {"--served-model-name", "default"});
  if (!options.model.empty()) arguments.insert(arguments.end(), {"--model", options.model});
  return ServerProcess::start(options.binary, arguments);
}

Result<std::string> backend_name(const ServerProcess& server) {
  EXPERTPLEX_ASSIGN(const auto body,
                    http_get(server.host(), server.port(), "/server_info", kLimit));
  EXPERTPLEX_ASSIGN(const Json info, parse_json(body));
  return get_string_or(info, "backend", "cpu");
}

struct Measured {
  Spread one, many, ttft;
  double idle_p99 = 0, busy_p99 = 0, busy_p99_without = 0;
  std::string backend;
};

Result<void> same_texts(const CpuBench::Interference& a, const CpuBench::Interference& b,
                        const char* what) {
  if (a.texts == b.texts) return {};
  return make_error(ErrorCode::kInternal,
                    "the greedy text of a running stream changed {}: numbers do not count", what);
}

Result<Measured> measure(const CpuBenchOptions& options) {
  Measured m;
  CpuBench::Interference alone;
  {
    EXPERTPLEX_ASSIGN(const auto server, start_server(options, {}));
    CpuBench bench(options, *server);
    EXPERTPLEX_ASSIGN(m.backend, backend_name(*server));
    EXPERTPLEX_ASSIGN(m.one, bench.tokens_per_second(1, 32, 256));
    print("one stream", m.one, "tok/s");
    EXPERTPLEX_ASSIGN(m.many, bench.tokens_per_second(32, 32, 128));
    print("32 streams together", m.many, "tok/s");
    EXPERTPLEX_ASSIGN(m.ttft, bench.ttft_milliseconds(200));
    print("time to first token, 200-token prompt, idle", m.ttft, "ms");
    EXPERTPLEX_ASSIGN(alone, bench.interference(false));
    m.idle_p99 = quantile(alone.idle_ms, 0.99);
    fmt::print("{:<52} {:>9.2f} ms     p50 {:.2f} ms, {} samples\n",
               "inter-token latency p99, 8 streams, idle", m.idle_p99, quantile(alone.idle_ms, 0.5),
               alone.idle_ms.size());
    EXPERTPLEX_ASSIGN(const auto with, bench.interference(true));
    EXPERTPLEX_TRY(same_texts(alone, with, "beside a prefill"));
    m.busy_p99 = quantile(with.busy_ms, 0.99);
    print_interference("  ... during 1,500-token prefills", with, m.idle_p99);
  }
  EXPERTPLEX_ASSIGN(const auto server, start_server(options, {"--preemption", "off"}));
  EXPERTPLEX_ASSIGN(const auto without, CpuBench(options, *server).interference(true));
  EXPERTPLEX_TRY(same_texts(alone, without, "with preemption off"));
  m.busy_p99_without = quantile(without.busy_ms, 0.99);
  print_interference("  ... the same with preemption off", without, m.idle_p99);
  return m;
}

}  // namespace

Result<void> run_cpu_bench(const CpuBenchOptions& options) {
  EXPERTPLEX_ASSIGN(const Measured m, measure(options));
  const std::string command = "./dev bench";
  const std::vector<SummaryRow> rows = {
      {"cpu.tokens_per_s_1", m.one.median, "tok/s", ">= 300", command},
      {"cpu.tokens_per_s_32", m.many.median, "tok/s", ">= 1200", command},
      {"cpu.ttft_ms_200", m.ttft.median, "ms", "<= 150", command},
      {"cpu.itl_p99_x", m.busy_p99 / m.idle_p99, "", "<= 3", command},
      {"cpu.itl_p99_x_preemption_off", m.busy_p99_without / m.idle_p99, "", "beside itl_p99_x",
       command},
  };
  if (options.summary_path.empty()) return {};
  return update_summary(options.summary_path, rows, options.commit, machine_name(m.backend));
}

}  // namespace expertplex::bench
