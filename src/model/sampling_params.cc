#include "model/sampling_params.h"

#include <cmath>

namespace expertplex {
namespace {

template <typename... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

}  // namespace

Result<void> validate(const SamplingParams& params) {
  if (params.max_tokens && *params.max_tokens < 1) {
    return refused("field 'max_tokens': expected at least 1, got {}", *params.max_tokens);
  }
  if (params.min_tokens < 0) {
    return refused("field 'min_tokens': expected at least 0, got {}", params.min_tokens);
  }
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    return refused("field 'min_tokens': expected at most max_tokens ({}), got {}",
                   *params.max_tokens, params.min_tokens);
  }
  if (!(params.temperature >= 0.0f && params.temperature <= 2.0f)) {
    return refused("field 'temperature': expected 0 to 2, got {}", params.temperature);
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return refused("field 'top_p': expected above 0 and at most 1, got {}", params.top_p);
  }
  if (params.top_k < 0) {
    return refused("field 'top_k': expected at least 0 (0: all tokens), got {}", params.top_k);
  }
  if (params.stop.size() > kMaxStopStrings) {
    return refused("field 'stop': expected at most {} strings, got {}", kMaxStopStrings,
                   params.stop.size());
  }
  for (const auto& stop : params.stop) {
    if (stop.empty()) return refused("field 'stop': expected non-empty strings");
    if (stop.size() > kMaxStopStringBytes) {
      return refused("field 'stop': expected strings of at most {} bytes, got {}",
                     kMaxStopStringBytes, stop.size());
    }
  }
  if (params.stop_token_ids.size() > kMaxStopTokenIds) {
    return refused("field 'stop_token_ids': expected at most {} ids, got {}", kMaxStopTokenIds,
                   params.stop_token_ids.size());
  }
  for (const int32_t id : params.stop_token_ids) {
    if (id < 0) return refused("field 'stop_token_ids': expected ids of at least 0, got {}", id);
  }
  return {};
}

}  // namespace expertplex
