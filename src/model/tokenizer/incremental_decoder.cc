#include "model/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace expertplex {

IncrementalDecoder::IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer,
                                       bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string IncrementalDecoder::push(int32_t id) {
  pending_ += tokenizer_->decode({&id, 1}, skip_special_);
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = scan_utf8(pending_, at);
    if (step.state == Utf8State::kIncomplete) break;
    if (step.state == Utf8State::kComplete) {
      text.append(pending_, at, static_cast<size_t>(step.length));
    } else {
      text += kReplacementCharacter;
    }
    at += static_cast<size_t>(step.length);
  }
  pending_.erase(0, at);
  return text;
}

std::string IncrementalDecoder::finish() {
  std::string text;
  if (!pending_.empty()) text = kReplacementCharacter;
  pending_.clear();
  return text;
}

}  // namespace expertplex
