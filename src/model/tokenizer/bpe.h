// Byte-pair encoding: a vocabulary, ranked merges, and the encoding of one word in O(n log n).
//
// Thread rules: immutable after loading; encode may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace expertplex {

// A bound on memory for broken files; real vocabularies end below 300,000.
constexpr int32_t kMaxTokenId = (1 << 21) - 1;

class Bpe {
 public:
  // `model` is the object of that name in tokenizer.json. Refused by name: other types,
  // byte_fallback, dropout, prefixes and suffixes, a vocabulary that does not hold all 256 bytes.
  static Result<Bpe> from_json(const Json& model);

  // Appends the ids of one word of the pre-tokenizer.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  // Token string (in the byte alphabet) to id.
  const std::unordered_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };
  struct PairHash {
    size_t operator()(uint64_t x) const {
      x *= 0x9E3779B97F4A7C15ull;
      return static_cast<size_t>(x ^ (x >> 32));
    }
  };
  class Merger;

  Result<void> read_vocabulary(const Json& vocabulary);
  Result<void> read_merges(const Json& merges);
  Result<void> add_merge(std::string_view left, std::string_view right, size_t rank);
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<std::string, int32_t> whole_words_;  // by bytes; only with ignore_merges
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace expertplex
