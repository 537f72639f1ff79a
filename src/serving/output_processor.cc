#include "serving/output_processor.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace expertplex {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(const std::string& text) {
  EXPERTPLEX_CHECK(!stopped_, "text after a stop string");
  if (stops_.empty()) return text;
  // A match ends in the new text, and no part of it has gone out: its start was held back.
  const size_t searched = held_.size();
  held_ += text;
  const std::string_view held = held_;
  for (size_t end = searched + 1; end <= held.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (held.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest == 0) continue;
    stopped_ = true;
    std::string out(held.substr(0, include_stop_ ? end : end - longest));
    held_.clear();
    return out;
  }
  const size_t released = held_.size() - open_suffix();
  std::string out = held_.substr(0, released);
  held_.erase(0, released);
  return out;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

size_t StopMatcher::open_suffix() const {
  const std::string_view held = held_;
  size_t longest = 0;
  for (const std::string_view stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held.size()); size > longest; --size) {
      if (held.ends_with(stop.substr(0, size))) longest = size;
    }
  }
  return longest;
}

OutputProcessor::OutputProcessor(const SamplingParams& sampling, int max_tokens,
                                 const std::vector<int32_t>& eos_tokens,
                                 std::unique_ptr<TextStream> stream)
    : ending_tokens_(sampling.stop_token_ids),
      min_tokens_(sampling.min_tokens),
      max_tokens_(max_tokens),
      include_stop_(sampling.include_stop_str_in_output),
      stream_(std::move(stream)),
      matcher_(sampling.stop, sampling.include_stop_str_in_output) {
  EXPERTPLEX_CHECK(max_tokens >= 1);
  if (!sampling.ignore_eos) {
    ending_tokens_.insert(ending_tokens_.end(), eos_tokens.begin(), eos_tokens.end());
  }
}

bool OutputProcessor::ends(int32_t token) const {
  return std::find(ending_tokens_.begin(), ending_tokens_.end(), token) != ending_tokens_.end();
}

// Text of the first min_tokens tokens passes unsearched.
std::string OutputProcessor::text_of(const std::string& piece) {
  return token_count_ <= min_tokens_ ? piece : matcher_.push(piece);
}

OutputProcessor::Step OutputProcessor::push(int32_t token) {
  EXPERTPLEX_CHECK(!finished_, "a token after the end");
  ++token_count_;
  Step step;
  const bool ended = token_count_ > min_tokens_ && ends(token);
  if (!ended || include_stop_) step.text = text_of(stream_->push(token));
  if (matcher_.stopped() || ended) {
    step.finish = FinishReason::kStop;
  } else if (token_count_ >= max_tokens_) {
    step.finish = FinishReason::kLength;
  }
  finished_ = step.finish != FinishReason::kNone;
  if (finished_ && !matcher_.stopped()) {
    step.text += text_of(stream_->finish());
    if (matcher_.stopped()) step.finish = FinishReason::kStop;
    step.text += matcher_.flush();
  }
  return step;
}

}  // namespace expertplex
