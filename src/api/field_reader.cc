#include "api/field_reader.h"

#include <algorithm>
#include <limits>

namespace expertplex {

const Json* FieldReader::find(const char* field) const {
  known_.emplace_back(field);
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::read(const char* field, bool& value) {
  known_.emplace_back(field);
  auto result = get_bool_or(object_, field, value);
  if (!result) return fail(field, result.error());
  value = *result;
}

void FieldReader::read(const char* field, int& value) {
  known_.emplace_back(field);
  auto result = get_int_or(object_, field, value);
  if (!result) return fail(field, result.error());
  constexpr int64_t kLow = std::numeric_limits<int>::min(), kHigh = std::numeric_limits<int>::max();
  if (*result < kLow || *result > kHigh) {
    return fail(bad_request(
        fmt::format("field '{}': expected an integer of 32 bits, got {}", field, *result), field));
  }
  value = static_cast<int>(*result);
}

void FieldReader::read(const char* field, float& value) {
  known_.emplace_back(field);
  auto result = get_number_or(object_, field, value);
  if (!result) return fail(field, result.error());
  value = static_cast<float>(*result);
}

void FieldReader::read(const char* field, std::string& value) {
  known_.emplace_back(field);
  auto result = get_string_or(object_, field, value);
  if (!result) return fail(field, result.error());
  value = std::move(*result);
}

void FieldReader::read_seed(const char* field, std::optional<uint64_t>& value) {
  const Json* seed = find(field);
  if (!seed) return;
  if (seed->is_number_unsigned()) {
    value = seed->get<uint64_t>();
    return;
  }
  auto result = get_int(object_, field);
  if (!result) return fail(field, result.error());
  value = static_cast<uint64_t>(*result);
}

void FieldReader::refuse(const char* field, const Json& neutral) {
  const Json* value = find(field);
  if (!value || *value == neutral) return;
  if (*value == Json(false) && neutral != Json(true)) return;
  if ((value->is_structured() || value->is_string()) && value->empty()) return;
  if (value->is_string() && value->get_ref<const std::string&>().empty()) return;
  std::string advice = "leave it out";
  if (!neutral.is_null()) advice += fmt::format(" or send {}", neutral.dump());
  fail(bad_request(fmt::format("field '{}': this server does not support it; {}", field, advice),
                   field, "unsupported_parameter"));
}

std::vector<std::string> FieldReader::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) names.push_back(name);
  }
  return names;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail(const char* field, const Error& error) {
  ApiError api_error = to_api_error(error);
  api_error.param = field;
  fail(std::move(api_error));
}

}  // namespace expertplex
