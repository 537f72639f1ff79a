// What templates may call: filters (`x | trim`), tests (`x is none`), methods (`x.strip()`) and
// functions
// (`range(3)`). One table each, so that the parser can refuse unknown names and the interpreter can
// call.
//
// Thread rules: the tables are constant.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/template/value.h"

namespace expertplex::chat {

// The arguments of one call, after the value that a filter, test or method works on.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` or of that name; null if it was not given.
  const Value* find(size_t index, std::string_view name) const;
  const Value& require(size_t index, std::string_view name) const;
  std::string string_or(size_t index, std::string_view name, std::string fallback) const;
  int64_t integer_or(size_t index, std::string_view name, int64_t fallback) const;
  bool truth_or(size_t index, std::string_view name, bool fallback) const;
  void expect_at_most(size_t count) const;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);
bool is_function(std::string_view name);

// REQUIRES: the name is known. All fail by TemplateError.
Value call_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool call_test(std::string_view name, const Value& value, const Arguments& arguments);
Value call_method(std::string_view name, const Value& object, const Arguments& arguments);
Value call_function(std::string_view name, const Arguments& arguments);

// Whether a dict of Python has an attribute of this name, which then hides a key.
bool is_dict_method(std::string_view name);
// x.name without a call; undefined if there is none.
Value get_attribute(const Value& object, std::string_view name);
Value get_item(const Value& object, const Value& key);

// a + b and so on; `name` is the operator.
Value apply_binary(std::string_view name, const Value& a, const Value& b);

}  // namespace expertplex::chat
