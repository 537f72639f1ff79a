#include "spec/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "base/file.h"
#include "base/json.h"

namespace expertplex {
namespace {

constexpr size_t kMaxTraceBytes = size_t{2} << 30;

// Lines of text without their ends; empty ones are skipped.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  std::optional<std::string_view> next() {
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (!line.empty()) return line;
    }
    return std::nullopt;
  }
  uint64_t number() const { return number_; }

 private:
  std::string_view rest_;
  uint64_t number_ = 0;
};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

template <typename Number>
Result<Number> parse_number(std::string_view text, std::string_view field) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return make_error(ErrorCode::kInvalidArgument, "{}: expected a number, got \"{}\"", field,
                    text.substr(0, 40));
}

// "2023-11-16 18:15:46.6805900", with or without a time zone behind it; seconds since 1970.
Result<double> parse_time(std::string_view text) {
  const auto number = [&](size_t first, size_t count) -> int {
    int value = -1;
    if (text.size() >= first + count) {
      std::from_chars(text.data() + first, text.data() + first + count, value);
    }
    return value;
  };
  using namespace std::chrono;
  const year_month_day day{year{number(0, 4)}, month{static_cast<unsigned>(number(5, 2))},
                           std::chrono::day{static_cast<unsigned>(number(8, 2))}};
  const int hour = number(11, 2), minute = number(14, 2);
  double second = -1;
  if (text.size() > 17) std::from_chars(text.data() + 17, text.data() + text.size(), second);
  if (!day.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 ||
      second >= 61) {
    return make_error(ErrorCode::kInvalidArgument,
                      "TIMESTAMP: expected a time as 2023-11-16 18:15:46.6805900, got \"{}\"",
                      text.substr(0, 40));
  }
  return static_cast<double>(sys_days{day}.time_since_epoch().count()) * 86400.0 + hour * 3600.0 +
         minute * 60.0 + second;
}

Result<TraceRequest> checked(double arrival_s, int64_t prompt, int64_t output) {
  if (prompt < 1 || output < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expected a prompt and an answer of 1 token or more, got {} and {}", prompt,
                      output);
  }
  return TraceRequest{arrival_s, prompt, output};
}

// Where a CSV has what a request needs, and how its times are written.
struct Columns {
  std::string_view time, prompt, output;
  size_t time_at = 0, prompt_at = 0, output_at = 0;
  Result<double> (*parse_time)(std::string_view) = nullptr;

  Result<void> find(std::string_view header) {
    const std::vector<std::string_view> names = split(header);
    for (auto [name, at] :
         {std::pair{time, &time_at}, {prompt, &prompt_at}, {output, &output_at}}) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) {
        return make_error(ErrorCode::kInvalidArgument, "line 1: expected a column \"{}\"", name);
      }
      *at = static_cast<size_t>(found - names.begin());
    }
    return {};
  }
  Result<TraceRequest> read(std::string_view line) const {
    const std::vector<std::string_view> fields = split(line);
    const size_t needed = std::max({time_at, prompt_at, output_at});
    if (fields.size() <= needed) {
      return make_error(ErrorCode::kInvalidArgument, "expected {} fields, got {}", needed + 1,
                        fields.size());
    }
    EXPERTPLEX_ASSIGN(const double at, parse_time(fields[time_at]));
    EXPERTPLEX_ASSIGN(const int64_t p, parse_number<int64_t>(fields[prompt_at], prompt));
    EXPERTPLEX_ASSIGN(const int64_t o, parse_number<int64_t>(fields[output_at], output));
    return checked(at, p, o);
  }
};

Result<TraceRequest> read_mooncake(std::string_view line) {
  EXPERTPLEX_ASSIGN(const Json json, parse_json(line));
  EXPERTPLEX_ASSIGN(const double milliseconds, get_number(json, "timestamp"));
  EXPERTPLEX_ASSIGN(const int64_t prompt, get_int(json, "input_length"));
  EXPERTPLEX_ASSIGN(const int64_t output, get_int(json, "output_length"));
  return checked(milliseconds * 1e-3, prompt, output);
}

// As vLLM's benchmark reads it: the first question and its answer.
Result<TraceRequest> read_sharegpt(const Json& entry, const TokenCounter& count_tokens) {
  const auto conversations = entry.find("conversations");
  if (!entry.is_object() || conversations == entry.end() || !conversations->is_array() ||
      conversations->size() < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "conversations: expected an array of two turns or more");
  }
  EXPERTPLEX_ASSIGN(const std::string prompt, get_string((*conversations)[0], "value"));
  EXPERTPLEX_ASSIGN(const std::string output, get_string((*conversations)[1], "value"));
  return checked(0, count_tokens(prompt), count_tokens(output));
}

void note(Trace& trace, uint64_t number, const char* unit, Result<TraceRequest> request) {
  if (request) {
    trace.requests.push_back(request.value());
    return;
  }
  if (trace.broken++ == 0) {
    trace.first_broken = fmt::format("{} {}: {}", unit, number, request.error().message);
  }
}

Result<Trace> parse_sharegpt(std::string_view text, const TokenCounter& count_tokens) {
  Trace trace;
  trace.format = "ShareGPT JSON";
  trace.has_times = false;
  if (!count_tokens) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a ShareGPT file has texts, not lengths: name a model, whose tokenizer counts");
  }
  EXPERTPLEX_ASSIGN(const Json json, parse_json(text));
  for (size_t i = 0; i < json.size(); ++i) {
    note(trace, i + 1, "entry", read_sharegpt(json[i], count_tokens));
  }
  return trace;
}

Result<Trace> parse_lines(std::string_view text) {
  Lines lines(text);
  const std::string_view first = lines.next().value_or("");
  Trace trace;
  Columns columns;
  if (first.starts_with('{')) {
    trace.format = "Mooncake JSONL";
    note(trace, lines.number(), "line", read_mooncake(first));
  } else if (first.starts_with("TIMESTAMP,")) {
    trace.format = "Azure CSV";
    columns = {.time = "TIMESTAMP", .prompt = "ContextTokens", .output = "GeneratedTokens"};
    columns.parse_time = parse_time;
  } else if (first.starts_with("Timestamp,")) {
    trace.format = "BurstGPT CSV";
    columns = {.time = "Timestamp", .prompt = "Request tokens", .output = "Response tokens"};
    columns.parse_time = [](std::string_view t) { return parse_number<double>(t, "Timestamp"); };
  } else {
    return make_error(
        ErrorCode::kInvalidArgument,
        "expected a trace (Azure CSV, BurstGPT CSV, Mooncake JSONL or ShareGPT JSON), "
        "got a file that begins with \"{}\"",
        first.substr(0, 40));
  }
  const bool csv = columns.parse_time != nullptr;
  if (csv) EXPERTPLEX_TRY(columns.find(first));
  while (const auto line = lines.next()) {
    note(trace, lines.number(), "line", csv ? columns.read(*line) : read_mooncake(*line));
  }
  return trace;
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, const std::string& name,
                          const TokenCounter& count_tokens) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  auto parsed = text.starts_with('[') ? parse_sharegpt(text, count_tokens) : parse_lines(text);
  if (!parsed) return parsed.error().in(name);
  Trace trace = std::move(parsed).value();
  if (trace.requests.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: no request can be read; {}", name,
                      trace.broken > 0 ? trace.first_broken : "it has no lines");
  }
  std::ranges::stable_sort(trace.requests, {}, &TraceRequest::arrival_s);
  const double start = trace.requests.front().arrival_s;
  for (TraceRequest& request : trace.requests) request.arrival_s -= start;
  return trace;
}

Result<Trace> read_trace(const std::string& path, const TokenCounter& count_tokens) {
  EXPERTPLEX_ASSIGN(const std::string text, read_file(path, kMaxTraceBytes));
  return parse_trace(text, path, count_tokens);
}

}  // namespace expertplex
