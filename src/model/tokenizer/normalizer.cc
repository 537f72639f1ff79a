#include "model/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

namespace expertplex {

Result<Normalizer> Normalizer::from_json(const Json& json) {
  Normalizer normalizer;
  if (json.is_null()) return normalizer;
  EXPERTPLEX_ASSIGN(const std::string type, get_string(json, "type"));
  if (type == "NFC") {
    normalizer.nfc_ = true;
    return normalizer;
  }
  if (type != "Sequence") {
    return make_error(ErrorCode::kUnsupported, "normalizer '{}' is not supported", type);
  }
  const auto parts = json.find("normalizers");
  if (parts == json.end() || !parts->is_array()) {
    return make_error(ErrorCode::kInvalidArgument, "field 'normalizers': expected an array");
  }
  for (const auto& part : *parts) {
    EXPERTPLEX_ASSIGN(const Normalizer inner, from_json(part));
    normalizer.nfc_ |= inner.nfc_;
  }
  return normalizer;
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage) const {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
  if (!nfc_ || ascii) return text;
  utf8proc_uint8_t* composed = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  EXPERTPLEX_CHECK(length >= 0, "NFC of valid UTF-8: {}", utf8proc_errmsg(length));
  storage.assign(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
  std::free(composed);
  return storage;
}

}  // namespace expertplex
