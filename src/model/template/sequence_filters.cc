// The filters of `x | name(...)` that work on the items of a sequence.
#include <algorithm>

#include "model/template/filters.h"
#include "model/template/text.h"

namespace expertplex::chat {
namespace {

using Kind = Value::Kind;

// The value behind a dotted path, "function.name" for example; `fallback`, if given, for every part
// that is not there.
Value by_path(Value value, const std::string& path, const Value* fallback = nullptr) {
  for (const auto& part : split(path, ".", -1)) {
    const bool index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = get_item(value, index ? Value(static_cast<int64_t>(std::stoll(part))) : Value(part));
    if (fallback && value.is(Kind::kUndefined)) value = *fallback;
  }
  return value;
}

Value item_value(const Value& item, const Arguments& a, size_t index) {
  const std::string path = a.string_or(index, "attribute", "");
  return path.empty() ? item : by_path(item, path);
}

Value join(const Value& v, const Arguments& a) {
  a.expect_at_most(2);
  const std::string separator = a.string_or(0, "d", "");
  std::string out;
  bool first = true;
  for (const auto& item : iterate(v)) {
    if (!first) out += separator;
    first = false;
    out += item_value(item, a, 1).text();
  }
  return Value(std::move(out));
}

// The arguments from `index` on.
Arguments rest_of(const Arguments& a, size_t index) {
  Arguments rest;
  rest.named = a.named;
  for (size_t i = index; i < a.positional.size(); ++i) rest.positional.push_back(a.positional[i]);
  return rest;
}

// select, reject, selectattr, rejectattr.
Value select(const Value& v, const Arguments& a, bool by_attribute, bool keep) {
  const size_t test_index = by_attribute ? 1 : 0;
  const std::string path = by_attribute ? a.require(0, "attribute").text() : std::string();
  const std::string test = a.string_or(test_index, "test", "");
  if (!test.empty() && !is_test(test)) fail("test '{}' is not supported", test);
  const Arguments rest = rest_of(a, test_index + 1);
  Value::List out;
  for (const auto& item : iterate(v)) {
    const Value value = by_attribute ? by_path(item, path) : item;
    if ((test.empty() ? value.truthy() : call_test(test, value, rest)) == keep) out.push_back(item);
  }
  return Value(std::move(out));
}

Value map(const Value& v, const Arguments& a) {
  Value::List out;
  if (a.positional.empty()) {
    const std::string path = a.require(0, "attribute").text();
    const Value* fallback = a.find(99, "default");
    for (const auto& item : iterate(v)) out.push_back(by_path(item, path, fallback));
    return Value(std::move(out));
  }
  const std::string filter = a.string_or(0, "filter", "");
  if (!is_filter(filter)) fail("filter '{}' is not supported", filter);
  const Arguments rest = rest_of(a, 1);
  for (const auto& item : iterate(v)) out.push_back(call_filter(filter, item, rest));
  return Value(std::move(out));
}

Value reverse(const Value& v, const Arguments& a) {
  a.expect_at_most(0);
  auto list = iterate(v);
  std::reverse(list.begin(), list.end());
  if (!v.is(Kind::kString)) return Value(std::move(list));
  std::string text;
  for (const auto& item : list) text += item.string();
  return Value(std::move(text));
}

// What items are ordered by: strings without case, unless asked for.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is(Kind::kString) && !case_sensitive ? Value(to_lower(value.string())) : value;
}

using Keyed = std::vector<std::pair<Value, Value>>;

Value sorted(Keyed keyed, bool reverse_order) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse_order ? compare(y.first, x.first) < 0 : compare(x.first, y.first) < 0;
  });
  Value::List out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value(std::move(out));
}

Value sort(const Value& v, const Arguments& a) {
  a.expect_at_most(3);
  const bool case_sensitive = a.truth_or(1, "case_sensitive", false);
  Keyed keyed;
  for (const auto& item : iterate(v)) {
    keyed.emplace_back(sort_key(item_value(item, a, 2), case_sensitive), item);
  }
  return sorted(std::move(keyed), a.truth_or(0, "reverse", false));
}

Value dictsort(const Value& v, const Arguments& a) {
  a.expect_at_most(3);
  if (!v.is(Kind::kDict)) fail("dictsort: expected a dict, got '{}'", v.type_name());
  const bool case_sensitive = a.truth_or(0, "case_sensitive", false);
  const std::string by = a.string_or(1, "by", "key");
  if (by != "key" && by != "value") fail("dictsort: by: expected key or value, got '{}'", by);
  Keyed keyed;
  for (const auto& [key, value] : v.dict().entries) {
    keyed.emplace_back(sort_key(by == "key" ? Value(key) : value, case_sensitive),
                       Value(Value::List{Value(key), value}));
  }
  return sorted(std::move(keyed), a.truth_or(2, "reverse", false));
}

Value unique(const Value& v, const Arguments& a) {
  a.expect_at_most(2);
  const bool case_sensitive = a.truth_or(0, "case_sensitive", false);
  Value::List seen;
  Value::List out;
  for (const auto& item : iterate(v)) {
    if (seen.size() > 1000) fail("unique: more than 1000 different items");
    Value key = sort_key(item_value(item, a, 1), case_sensitive);
    const auto same = [&](const Value& other) { return equal(other, key); };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Value(std::move(out));
}

Value sum(const Value& v, const Arguments& a) {
  a.expect_at_most(2);
  const Value* start = a.find(1, "start");
  Value total = start ? *start : Value(int64_t{0});
  for (const auto& item : iterate(v)) total = apply_binary("+", total, item_value(item, a, 0));
  return total;
}

Value extreme(const Value& v, const Arguments& a, int sign) {
  const bool case_sensitive = a.truth_or(0, "case_sensitive", false);
  const auto items = iterate(v);
  if (items.empty()) return Value::undefined("an empty sequence");
  const Value* best = &items.front();
  for (const auto& item : items) {
    if (sign * compare(sort_key(item_value(item, a, 1), case_sensitive),
                       sort_key(item_value(*best, a, 1), case_sensitive)) >
        0) {
      best = &item;
    }
  }
  return *best;
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable kFilters = {
      {"join", join},
      {"map", map},
      {"reverse", reverse},
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"sum", sum},
      {"select", [](const Value& v, const Arguments& a) { return select(v, a, false, true); }},
      {"reject", [](const Value& v, const Arguments& a) { return select(v, a, false, false); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return select(v, a, true, true); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return select(v, a, true, false); }},
      {"min", [](const Value& v, const Arguments& a) { return extreme(v, a, -1); }},
      {"max", [](const Value& v, const Arguments& a) { return extreme(v, a, 1); }},
  };
  return kFilters;
}

}  // namespace expertplex::chat
