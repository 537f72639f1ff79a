#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

template <typename... Args>
Error broken(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Options of the `tokenizers` library that change the ids and that byte-level models do not use.
Result<void> refuse_options(const Json& model) {
  EXPERTPLEX_ASSIGN(const std::string type, get_string_or(model, "type", "BPE"));
  if (type != "BPE") {
    return make_error(ErrorCode::kUnsupported, "field 'type': this build runs BPE, got {}", type);
  }
  EXPERTPLEX_ASSIGN(const bool byte_fallback, get_bool_or(model, "byte_fallback", false));
  if (byte_fallback) {
    return make_error(
        ErrorCode::kUnsupported,
        "field 'byte_fallback': this build runs byte-level BPE, got a SentencePiece-like "
        "model");
  }
  EXPERTPLEX_ASSIGN(const double dropout, get_number_or(model, "dropout", 0));
  if (dropout != 0) {
    return make_error(ErrorCode::kUnsupported, "field 'dropout': expected none, got {}", dropout);
  }
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    EXPERTPLEX_ASSIGN(const std::string affix, get_string_or(model, field, ""));
    if (!affix.empty()) {
      return make_error(ErrorCode::kUnsupported, "field '{}': expected none, got '{}'", field,
                        affix);
    }
  }
  return {};
}

}  // namespace

// The symbols of one word as a doubly linked list, and the merges that are possible in it by rank,
// then position. An entry of the queue is stale if its pair is no longer there.
class Bpe::Merger {
 public:
  Merger(const Bpe& bpe, std::string_view word) : bpe_(bpe), symbols_(word.size()) {
    const auto count = static_cast<int32_t>(word.size());
    for (int32_t i = 0; i < count; ++i) {
      symbols_[i] = {bpe.byte_ids_[static_cast<uint8_t>(word[i])], i - 1,
                     i + 1 < count ? i + 1 : -1};
    }
    std::vector<Candidate> possible;
    for (int32_t i = 0; i + 1 < count; ++i) {
      if (const Merge* merge = bpe.find_merge(symbols_[i].id, symbols_[i + 1].id)) {
        possible.push_back({merge->rank, i, merge->id});
      }
    }
    queue_ = Queue(std::greater<>(), std::move(possible));
  }

  void run() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[top.position];
      if (left.id < 0 || left.next < 0) continue;
      Symbol& right = symbols_[left.next];
      const Merge* merge = bpe_.find_merge(left.id, right.id);
      if (!merge || merge->id != top.id) continue;
      left.id = top.id;
      right.id = -1;
      left.next = right.next;
      if (left.next >= 0) symbols_[left.next].previous = top.position;
      offer(left.previous, top.position);
      offer(top.position, left.next);
    }
  }

  void append_to(std::vector<int32_t>& ids) const {
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  struct Symbol {
    int32_t id = -1;  // -1: merged into the one before it
    int32_t previous = -1;
    int32_t next = -1;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t position = 0;
    int32_t id = 0;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  void offer(int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const Merge* merge = bpe_.find_merge(symbols_[left].id, symbols_[right].id)) {
      queue_.push({merge->rank, left, merge->id});
    }
  }

  const Bpe& bpe_;
  std::vector<Symbol> symbols_;
  Queue queue_;
};

Result<Bpe> Bpe::from_json(const Json& model) {
  if (!model.is_object()) return broken("expected an object, got {}", json_type_name(model));
  EXPERTPLEX_TRY(refuse_options(model));
  Bpe bpe;
  const auto vocabulary = model.find("vocab");
  if (vocabulary == model.end() || !vocabulary->is_object()) {
    return broken("field 'vocab': expected an object of token to id");
  }
  EXPERTPLEX_TRY(bpe.read_vocabulary(*vocabulary));
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array())
    return broken("field 'merges': expected an array");
  EXPERTPLEX_TRY(bpe.read_merges(*merges));
  EXPERTPLEX_ASSIGN(const bool ignore_merges, get_bool_or(model, "ignore_merges", false));
  if (ignore_merges) {
    for (const auto& [token, id] : bpe.vocabulary_) {
      if (auto bytes = spelled_bytes(token)) bpe.whole_words_.emplace(std::move(*bytes), id);
    }
  }
  return bpe;
}

Result<void> Bpe::read_vocabulary(const Json& vocabulary) {
  vocabulary_.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      return broken("field 'vocab': token '{}': expected an id of 0 to {}", token, kMaxTokenId);
    }
    vocabulary_.emplace(token, id.get<int32_t>());
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(letter, byte_to_letter(static_cast<uint8_t>(byte)));
    const auto it = vocabulary_.find(letter);
    if (it == vocabulary_.end()) {
      return make_error(ErrorCode::kUnsupported,
                        "field 'vocab': byte {} ('{}') is missing; this build runs byte-level BPE, "
                        "whose vocabulary holds all 256 bytes",
                        byte, letter);
    }
    byte_ids_[static_cast<size_t>(byte)] = it->second;
  }
  return {};
}

Result<void> Bpe::read_merges(const Json& merges) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return broken("field 'merges': entry {}: expected two tokens, got '{}'", rank, text);
      }
      EXPERTPLEX_TRY(add_merge(std::string_view(text).substr(0, space),
                               std::string_view(text).substr(space + 1), rank));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      EXPERTPLEX_TRY(add_merge(merge[0].get_ref<const std::string&>(),
                               merge[1].get_ref<const std::string&>(), rank));
    } else {
      return broken("field 'merges': entry {}: expected \"left right\" or [left, right]", rank);
    }
  }
  return {};
}

Result<void> Bpe::add_merge(std::string_view left, std::string_view right, size_t rank) {
  std::string joined(left);
  joined += right;
  for (const std::string& token : {std::string(left), std::string(right), joined}) {
    if (!vocabulary_.count(token)) {
      return broken("field 'merges': entry {}: token '{}' is not in the vocabulary", rank, token);
    }
  }
  merges_[pair_key(vocabulary_.at(std::string(left)), vocabulary_.at(std::string(right)))] = {
      static_cast<uint32_t>(rank), vocabulary_.at(joined)};
  return {};
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  EXPERTPLEX_CHECK(word.size() < (size_t{1} << 31));
  if (word.empty()) return;
  if (!whole_words_.empty()) {
    if (const auto it = whole_words_.find(std::string(word)); it != whole_words_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  Merger merger(*this, word);
  merger.run();
  merger.append_to(ids);
}

}  // namespace expertplex
