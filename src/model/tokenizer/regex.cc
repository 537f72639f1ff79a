#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/regex.h"

#include <pcre2.h>
#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "base/shorten.h"
#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

// Bounds of one match. The patterns that tokenizers use need a few steps per byte of the text; one
// that needs far more would hold up everybody.
constexpr uint64_t kMatchSteps = 1'000'000;
constexpr uint64_t kMatchStepsPerByte = 64;
// Bounds of all matches in a text, in time of this thread on its processor.
constexpr Nanoseconds kTextTime = 200 * kMillisecond;
constexpr Nanoseconds kTextTimePerByte = 10'000;
constexpr int kMatchesBetweenLooks = 16;
constexpr size_t kJitStackBytes = size_t{64} << 20;
constexpr uint32_t kHeapKibibytes = 512 * 1024;
constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kMaxShownBytes = 200;  // of a pattern in a message

// What a thread needs to match; grows to the largest text it has seen.
struct MatchState {
  MatchState()
      : context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(64 * 1024, kJitStackBytes, nullptr)),
        data(pcre2_match_data_create(1, nullptr)) {
    EXPERTPLEX_CHECK(context && data, "out of memory");
    pcre2_set_depth_limit(context, UINT32_MAX);
    pcre2_set_heap_limit(context, kHeapKibibytes);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  pcre2_match_data* data;
};

MatchState& match_state() {
  thread_local MatchState state;
  return state;
}

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

int match_at(const pcre2_code* code, std::string_view text, size_t start) {
  MatchState& state = match_state();
  const uint64_t steps = kMatchSteps + kMatchStepsPerByte * (text.size() - start);
  pcre2_set_match_limit(state.context,
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int count =
      pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        state.data, state.context);
  }
  return count;
}

Nanoseconds thread_time() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * kSecond + used.tv_nsec;
}

Error too_slow(size_t at) {
  return make_error(ErrorCode::kInvalidArgument,
                    "the text cannot be split into words: at byte {} the tokenizer's regex takes "
                    "far more steps than a text of this size should need",
                    at);
}

}  // namespace

Result<Regex> Regex::compile_pcre(const std::string& pattern, std::string_view original,
                                  uint32_t options) {
  if (pattern.size() > kMaxPatternBytes) {
    return make_error(ErrorCode::kUnsupported, "a pattern of {} bytes; expected at most {}",
                      pattern.size(), kMaxPatternBytes);
  }
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  EXPERTPLEX_CHECK(context, "out of memory");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (!code) {
    return make_error(ErrorCode::kInvalidArgument, "regex '{}': {}",
                      shorten(std::string(original), kMaxShownBytes), pcre_message(error));
  }
  pcre2_jit_compile(code,
                    PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  Regex regex;
  regex.code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  return regex;
}

Result<Regex> Regex::compile(std::string_view pattern) {
  if (find_invalid_utf8(pattern) != pattern.size()) {
    return make_error(ErrorCode::kInvalidArgument, "regex: not valid UTF-8");
  }
  auto translated = translate_pattern(pattern);
  if (!translated)
    return translated.error().in(
        fmt::format("regex '{}'", shorten(std::string(pattern), kMaxShownBytes)));
  return compile_pcre(*translated, pattern, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE);
}

Result<Regex> Regex::compile_literal(std::string_view text) {
  return compile_pcre(std::string(text), text, PCRE2_UTF | PCRE2_LITERAL);
}

Result<void> Regex::for_each_match(
    std::string_view text, const std::function<void(size_t begin, size_t end)>& found) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_state().data);
  size_t start = 0;
  size_t last_end = SIZE_MAX;
  Nanoseconds time_limit = 0;  // set at the first look
  for (int matched = 1; start <= text.size(); ++matched) {
    if (matched % kMatchesBetweenLooks == 0) {
      const Nanoseconds now = thread_time();
      if (time_limit == 0) {
        time_limit = now + kTextTime + kTextTimePerByte * static_cast<Nanoseconds>(text.size());
      }
      if (now > time_limit) return too_slow(start);
      matched = 0;
    }
    const int count = match_at(code, text, start);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count == PCRE2_ERROR_MATCHLIMIT) return too_slow(start);
    if (count < 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the text cannot be split into words: {} at byte {}", pcre_message(count),
                        start);
    }
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (begin == end && end == last_end) {
      start += start < text.size() ? static_cast<size_t>(scan_utf8(text, start).length) : 1;
      continue;
    }
    found(begin, end);
    start = end;
    last_end = end;
  }
  return {};
}

}  // namespace expertplex
