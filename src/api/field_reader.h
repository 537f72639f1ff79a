// FieldReader: takes typed, optional fields out of a request's JSON object and keeps the first
// complaint, so that parsing reads as a list of fields. Private to src/api.
//
// Thread rules: one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "base/json.h"

namespace expertplex {

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  // The field's value, null if it is absent or null. This and the members below make the field a
  // known one.
  const Json* find(const char* field) const;

  // Each leaves `value` as it is if the field is absent or null.
  void read(const char* field, bool& value);
  void read(const char* field, int& value);
  void read(const char* field, float& value);
  void read(const char* field, std::string& value);
  // Any 64-bit integer; negative ones keep their bits.
  void read_seed(const char* field, std::optional<uint64_t>& value);

  // Refuses a field whose value is neither absent nor neutral: null, false (unless `neutral` is
  // true), [], {}, "" or `neutral`.
  void refuse(const char* field, const Json& neutral = nullptr);

  // A field that changes nothing here.
  void accept(const char* field) { known_.emplace_back(field); }
  // The object's fields that nobody has asked for.
  std::vector<std::string> unknown() const;

  void fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void fail(const char* field, const Error& error);

  const Json& object_;
  mutable std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

}  // namespace expertplex
