#include "bench/summary.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/json.h"

namespace expertplex::bench {

std::string machine_name(const std::string& kernels) {
  std::ifstream info("/proc/cpuinfo");
  std::string model = "unknown processor";
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  return fmt::format("{} cores, {}, {}", sysconf(_SC_NPROCESSORS_ONLN), model, kernels);
}

Result<void> update_summary(const std::string& path, const std::vector<SummaryRow>& rows,
                            const std::string& commit, const std::string& machine) {
  std::map<std::string, Json> by_name;
  if (std::filesystem::exists(path)) {
    EXPERTPLEX_ASSIGN(const Json old, read_json_file(path));
    if (!old.is_array()) {
      return make_error(ErrorCode::kInvalidArgument, "{}: expected an array of rows", path);
    }
    for (const Json& row : old) {
      auto name = get_string(row, "name");
      if (!name) return name.error().in(path);
      by_name[*name] = row;
    }
  }
  const std::string date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  for (const SummaryRow& row : rows) {
    by_name[row.name] = Json{{"name", row.name},       {"value", row.value},
                             {"unit", row.unit},       {"target", row.target},
                             {"command", row.command}, {"commit", commit},
                             {"machine", machine},     {"date", date}};
  }
  Json all = Json::array();
  for (auto& [name, row] : by_name) all.push_back(std::move(row));
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  if (!file.flush()) return make_error(ErrorCode::kInternal, "{}: cannot write", path);
  return {};
}

}  // namespace expertplex::bench
