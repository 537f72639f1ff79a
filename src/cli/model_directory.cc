#include "cli/model_directory.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace expertplex::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBundledModel = "expertplex-mini";

bool is_model(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored);
}

// "owner/name", as on a model hub.
bool looks_like_hub_name(const std::string& given) {
  const size_t slash = given.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < given.size() &&
         given.find('/', slash + 1) == std::string::npos && given[0] != '.' && given[0] != '~';
}

std::vector<fs::path> bundled_candidates(const std::string& name) {
  std::vector<fs::path> candidates;
  if (const char* models = std::getenv("EXPERTPLEX_MODELS"); models && *models) {
    candidates = {models, fs::path(models) / name};
  }
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    candidates.push_back(binary.parent_path() / "models" / name);
    const fs::path root = binary.parent_path().parent_path();
    candidates.push_back(root / "models" / name);
    candidates.push_back(root / "share" / "expertplex" / "models" / name);
  }
  return candidates;
}

}  // namespace

Result<std::string> find_model_directory(const std::string& given) {
  if (!given.empty() && is_model(given)) return fs::path(given).lexically_normal().string();
  std::error_code ignored;
  if (fs::is_directory(given, ignored)) {
    return make_error(ErrorCode::kNotFound, "{}: no config.json in this directory", given);
  }
  if (fs::exists(given, ignored)) {
    return make_error(ErrorCode::kNotFound,
                      "{}: this is a file; give the model directory that it is in", given);
  }
  if (given.find('/') != std::string::npos) {
    return make_error(ErrorCode::kNotFound, "{}: no such model directory{}", given,
                      looks_like_hub_name(given)
                          ? "; nothing is downloaded: give the path of a downloaded model"
                          : "");
  }
  std::string looked;
  for (const fs::path& candidate : bundled_candidates(given.empty() ? kBundledModel : given)) {
    if (is_model(candidate)) return candidate.lexically_normal().string();
    looked += (looked.empty() ? "" : ", ") + candidate.string();
  }
  return make_error(ErrorCode::kNotFound,
                    "no model '{}': give a model directory with --model (looked in {})",
                    given.empty() ? kBundledModel : given, looked);
}

}  // namespace expertplex::cli
