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

std::vector<fs::path> bundled_candidates(const std::string& name) {
  std::vector<fs::path> candidates;
  if (const char* models = std::getenv("EXPERTPLEX_MODELS"); models && *models) {
    candidates = {models, fs::path(models) / name};
  }
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
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
  if (fs::exists(given, ignored) || given.find('/') != std::string::npos) {
    return make_error(ErrorCode::kNotFound, "{}: no such model directory", given);
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
