#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace expertplex {
namespace {

// What ByteLevel cuts by when its use_regex is true.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxSteps = 64;

Error unsupported(std::string_view what) {
  return make_error(ErrorCode::kUnsupported, "{} is not supported", what);
}

Result<SplitBehavior> read_behavior(const Json& json) {
  EXPERTPLEX_ASSIGN(const std::string name, get_string(json, "behavior"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return make_error(
      ErrorCode::kInvalidArgument,
      "field 'behavior': expected Isolated, Removed, MergedWithPrevious, MergedWithNext "
      "or Contiguous, got '{}'",
      name);
}

Result<Regex> read_pattern(const Json& json) {
  const auto pattern = json.find("pattern");
  if (pattern == json.end() || !pattern->is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "field 'pattern': expected an object");
  }
  if (pattern->contains("Regex")) {
    EXPERTPLEX_ASSIGN(const std::string regex, get_string(*pattern, "Regex"));
    return Regex::compile(regex);
  }
  EXPERTPLEX_ASSIGN(const std::string text, get_string(*pattern, "String"));
  if (text.empty()) return unsupported("a Split by the empty string");
  return Regex::compile_literal(text);
}

struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool match = false;
};

// Joins spans as the behaviour says; each of the results becomes a word. Walks backwards for
// kMergedWithNext, which is kMergedWithPrevious seen in a mirror.
std::vector<Span> join(std::vector<Span> spans, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans.begin(), spans.end());
  std::vector<Span> joined;
  bool previous_match = false;
  for (const Span& span : spans) {
    const bool merge = behavior == SplitBehavior::kContiguous ? span.match == previous_match
                                                              : span.match && !previous_match;
    previous_match = span.match;
    if (!merge || joined.empty()) {
      joined.push_back(span);
    } else if (backwards) {
      joined.back().begin = span.begin;
    } else {
      joined.back().end = span.end;
    }
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  return joined;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::from_json(const Json& json) {
  PreTokenizer pre_tokenizer;
  if (!json.is_null()) EXPERTPLEX_TRY(pre_tokenizer.add(json));
  if (!pre_tokenizer.byte_level_) {
    return unsupported(
        "a tokenizer without a ByteLevel pre-tokenizer (this build runs byte-level BPE)");
  }
  return pre_tokenizer;
}

Result<void> PreTokenizer::add(const Json& json) {
  if (!json.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object, got {}",
                      json_type_name(json));
  }
  EXPERTPLEX_ASSIGN(const std::string type, get_string(json, "type"));
  if (type == "Sequence") {
    const auto parts = json.find("pretokenizers");
    if (parts == json.end() || !parts->is_array()) {
      return make_error(ErrorCode::kInvalidArgument, "field 'pretokenizers': expected an array");
    }
    for (const auto& part : *parts) EXPERTPLEX_TRY(add(part));
    return {};
  }
  // Later steps would see the spelled bytes instead of the text.
  if (byte_level_) return unsupported("a pre-tokenizer after ByteLevel");
  if (steps_.size() >= kMaxSteps) return unsupported("a longer sequence of pre-tokenizers");
  if (type == "ByteLevel") return add_byte_level(json);
  if (type == "Split") return add_split(json);
  if (type == "Digits") {
    EXPERTPLEX_ASSIGN(const bool individual, get_bool_or(json, "individual_digits", false));
    EXPERTPLEX_ASSIGN(auto regex, Regex::compile(R"(\p{N})"));
    steps_.push_back({std::move(regex),
                      individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false,
                      false});
    return {};
  }
  return unsupported(fmt::format("pre-tokenizer '{}'", type));
}

Result<void> PreTokenizer::add_split(const Json& json) {
  Step step;
  EXPERTPLEX_ASSIGN(step.regex, read_pattern(json));
  EXPERTPLEX_ASSIGN(step.behavior, read_behavior(json));
  EXPERTPLEX_ASSIGN(step.invert, get_bool_or(json, "invert", false));
  steps_.push_back(std::move(step));
  return {};
}

Result<void> PreTokenizer::add_byte_level(const Json& json) {
  byte_level_ = true;
  Step step;
  EXPERTPLEX_ASSIGN(step.add_prefix_space, get_bool_or(json, "add_prefix_space", true));
  EXPERTPLEX_ASSIGN(const bool use_regex, get_bool_or(json, "use_regex", true));
  if (use_regex) {
    EXPERTPLEX_ASSIGN(step.regex, Regex::compile(kGpt2Pattern));
  }
  steps_.push_back(std::move(step));
  return {};
}

Result<void> PreTokenizer::apply(const Step& step, std::string_view text,
                                 std::vector<std::string_view>& out) {
  if (!step.regex) {
    out.push_back(text);
    return {};
  }
  if (step.behavior == SplitBehavior::kIsolated) {  // the usual case, without the list of spans
    size_t done = 0;
    EXPERTPLEX_TRY(step.regex->for_each_match(text, [&](size_t begin, size_t end) {
      if (begin > done) out.push_back(text.substr(done, begin - done));
      if (end > begin) out.push_back(text.substr(begin, end - begin));
      done = end;
    }));
    if (done < text.size()) out.push_back(text.substr(done));
    return {};
  }
  std::vector<Span> spans;
  size_t done = 0;
  EXPERTPLEX_TRY(step.regex->for_each_match(text, [&](size_t begin, size_t end) {
    if (begin != done) spans.push_back({done, begin, step.invert});
    spans.push_back({begin, end, !step.invert});
    done = end;
  }));
  if (done != text.size()) spans.push_back({done, text.size(), step.invert});
  const bool remove = step.behavior == SplitBehavior::kRemoved;
  if (!remove) spans = join(std::move(spans), step.behavior);
  for (const Span& span : spans) {
    if (span.end > span.begin && !(remove && span.match)) {
      out.push_back(text.substr(span.begin, span.end - span.begin));
    }
  }
  return {};
}

Result<void> PreTokenizer::split(std::string_view text, Words& words) const {
  std::vector<std::string_view> current;
  if (!text.empty()) current.push_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    for (std::string_view piece : current) {
      if (step.add_prefix_space && piece[0] != ' ') {
        piece = words.owned.emplace_back(" ").append(piece);
      }
      EXPERTPLEX_TRY(apply(step, piece, next));
    }
    current = std::move(next);
  }
  words.views.insert(words.views.end(), current.begin(), current.end());
  return {};
}

}  // namespace expertplex
