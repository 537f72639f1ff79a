#include "model/generation_config.h"

#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/shorten.h"

namespace expertplex {
namespace {

namespace fs = std::filesystem;

// Fields that would change the answer, and the values with which they do not.
const std::pair<const char*, Json> kNotApplied[] = {
    {"repetition_penalty", 1},   {"min_p", 0},     {"typical_p", 1},
    {"no_repeat_ngram_size", 0}, {"num_beams", 1}, {"max_new_tokens", nullptr},
};

Result<int> read_top_k(const Json& config) {
  EXPERTPLEX_ASSIGN(const int64_t top_k, get_int_or(config, "top_k", 0));
  if (top_k < -1 || top_k > INT32_MAX) {
    return make_error(ErrorCode::kInvalidArgument,
                      "field 'top_k': expected -1 (all tokens) or more, got {}", top_k);
  }
  return top_k == -1 ? 0 : static_cast<int>(top_k);
}

Result<SamplingDefaults> read_defaults(const Json& config) {
  if (!config.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected a JSON object, got {}",
                      json_type_name(config));
  }
  SamplingDefaults defaults;
  EXPERTPLEX_ASSIGN(const double temperature, get_number_or(config, "temperature", 1));
  EXPERTPLEX_ASSIGN(const double top_p, get_number_or(config, "top_p", 1));
  EXPERTPLEX_ASSIGN(defaults.top_k, read_top_k(config));
  defaults.temperature = static_cast<float>(temperature);
  defaults.top_p = static_cast<float>(top_p);
  SamplingParams params;
  defaults.apply_to(params);
  EXPERTPLEX_TRY(validate(params));
  for (const auto& [field, neutral] : kNotApplied) {
    const auto it = config.find(field);
    if (it == config.end() || it->is_null() || *it == neutral) continue;
    defaults.not_applied.push_back(fmt::format(
        "{} {}", field, shorten(it->dump(-1, ' ', false, Json::error_handler_t::replace), 100)));
  }
  return defaults;
}

}  // namespace

void SamplingDefaults::apply_to(SamplingParams& params) const {
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
}

Result<SamplingDefaults> load_sampling_defaults(const std::string& directory) {
  const std::string path = (fs::path(directory) / "generation_config.json").string();
  EXPERTPLEX_ASSIGN(const bool exists, file_exists(path));
  if (!exists) return SamplingDefaults{};
  EXPERTPLEX_ASSIGN(const Json config, read_json_file(path));
  auto defaults = read_defaults(config);
  if (!defaults) return defaults.error().in(path);
  return defaults;
}

}  // namespace expertplex
