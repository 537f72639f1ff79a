#include "cpu/attention/sampling.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/random.h"
#include "cpu/kernels/vector_ops.h"

namespace expertplex::cpu {
namespace {

constexpr float kGreedyTemperature = 1e-5f;

// Falling logit, equals by rising id.
struct ByLogit {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

}  // namespace

double sampling_uniform(uint64_t seed, int64_t position) {
  // Two rounds of mixing: neighbouring seeds and positions give unrelated draws.
  Random by_seed(seed);
  Random by_position(by_seed.next() ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03ull));
  by_position.next();
  return by_position.unit();
}

Sampler::Sampler(int vocab_size)
    : weights_(static_cast<size_t>(vocab_size)), candidates_(static_cast<size_t>(vocab_size)) {}

int32_t Sampler::sample(std::span<float> logits, const SampleSpec& spec, int64_t position) {
  EXPERTPLEX_CHECK(logits.size() == weights_.size(), "{} logits, vocabulary {}", logits.size(),
                   weights_.size());
  for (const int32_t id : spec.forbidden) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) {
      logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  const int vocab = static_cast<int>(logits.size());
  const int best = argmax(logits.data(), vocab);
  if (best < 0 || spec.temperature < kGreedyTemperature || spec.top_k == 1) return best;

  softmax_numerators(logits.data(), vocab, 1.0f / spec.temperature, weights_.data());
  int count = 0;
  for (int32_t id = 0; id < vocab; ++id) {
    if (weights_[static_cast<size_t>(id)] > 0.0f) candidates_[static_cast<size_t>(count++)] = id;
  }
  if (spec.top_k > 0 && spec.top_k < count) count = keep_top_k(logits, count, spec.top_k);
  if (spec.top_p < 1.0f) count = keep_top_p(logits, count, spec.top_p);
  std::sort(candidates_.begin(), candidates_.begin() + count);

  double total = 0;
  for (int i = 0; i < count; ++i) total += weights_[static_cast<size_t>(candidates_[i])];
  const double target = sampling_uniform(spec.seed, position) * total;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += weights_[static_cast<size_t>(candidates_[i])];
    if (sum > target) return candidates_[i];
  }
  return count > 0 ? candidates_[count - 1] : best;
}

int Sampler::keep_top_k(std::span<const float> logits, int count, int top_k) {
  const auto first = candidates_.begin();
  std::nth_element(first, first + top_k - 1, first + count, ByLogit{logits});
  return top_k;
}

int Sampler::keep_top_p(std::span<const float> logits, int count, float top_p) {
  double total = 0;
  for (int i = 0; i < count; ++i) total += weights_[static_cast<size_t>(candidates_[i])];
  // All tokens below this limit together weigh less than the (1 - top_p) * total that may go, so
  // none of them is among the kept, and they need not be sorted. (Half of it, against rounding.)
  const double limit = 0.5 * (1.0 - static_cast<double>(top_p)) * total / count;
  const auto first = candidates_.begin();
  const auto last = std::partition(
      first, first + count, [&](int32_t id) { return weights_[static_cast<size_t>(id)] >= limit; });
  std::sort(first, last, ByLogit{logits});
  const int sorted = static_cast<int>(last - first);
  double sum = 0;
  for (int i = 0; i < sorted; ++i) {
    sum += weights_[static_cast<size_t>(candidates_[i])];
    if (sum >= static_cast<double>(top_p) * total) return i + 1;
  }
  return std::max(sorted, 1);
}

}  // namespace expertplex::cpu
