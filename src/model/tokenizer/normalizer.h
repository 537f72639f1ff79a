// The `normalizer` of tokenizer.json: none, NFC, or a Sequence of these.
//
// Thread rules: a value.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace expertplex {

class Normalizer {
 public:
  // `json` is the value of the field, possibly null.
  static Result<Normalizer> from_json(const Json& json);

  // REQUIRES: valid UTF-8. The result is a view of `text` itself or of `storage`.
  std::string_view normalize(std::string_view text, std::string& storage) const;

 private:
  bool nfc_ = false;
};

}  // namespace expertplex
