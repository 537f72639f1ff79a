#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/utf8.h"

namespace expertplex {
namespace {

Regex compile_word_character() {
  auto regex = Regex::compile(R"([\w\x{200C}\x{200D}])");
  EXPERTPLEX_CHECK(regex.ok(), "{}", regex.error().message);
  return std::move(*regex);
}

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The beginning of the code point that ends at `end`.
size_t previous_code_point(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && is_continuation(text[at])) --at;
  return at;
}

size_t skip_space_backwards(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = previous_code_point(text, end);
    if (!is_white_space(scan_utf8(text, at).code_point)) break;
    end = at;
  }
  return end;
}

size_t skip_space_forwards(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = scan_utf8(text, at);
    if (!is_white_space(step.code_point)) break;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher()
    : token_at_node_(1, -1), word_character_(compile_word_character()) {}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  uint32_t node = kRoot;
  for (const char c : pattern) {
    const uint64_t edge = (uint64_t{node} << 8) | static_cast<uint8_t>(c);
    const auto [entry, added] =
        children_.try_emplace(edge, static_cast<uint32_t>(token_at_node_.size()));
    if (added) token_at_node_.push_back(-1);
    node = entry->second;
  }
  if (token_at_node_[node] >= 0) return;
  token_at_node_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  Match best;
  uint32_t node = kRoot;
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = children_.find((uint64_t{node} << 8) | static_cast<uint8_t>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (token_at_node_[node] >= 0) best = {i + 1 - at, &tokens_[token_at_node_[node]]};
  }
  return best;
}

bool AddedTokenMatcher::touches_word(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    bool word = false;
    const auto matched =
        word_character_.for_each_match(character, [&](size_t, size_t) { word = true; });
    return matched.ok() && word;
  };
  if (begin > 0) {
    const size_t before = previous_code_point(text, begin);
    if (is_word(text.substr(before, begin - before))) return true;
  }
  if (end >= text.size()) return false;
  return is_word(text.substr(end, static_cast<size_t>(scan_utf8(text, end).length)));
}

std::vector<TextPart> AddedTokenMatcher::split(std::string_view text, bool parse_special) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  size_t at = 0;
  while (!tokens_.empty() && at < text.size()) {
    const Match match = longest_at(text, at);
    if (!match.token) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match.length;
    at = end;  // a match that is then refused still hides what lies inside it
    const AddedToken& token = *match.token;
    if (token.special && !parse_special) continue;
    if (token.single_word && touches_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(skip_space_backwards(text.substr(0, begin), begin), done);
    if (token.rstrip) end = skip_space_forwards(text, end);
    if (begin > done) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace expertplex
