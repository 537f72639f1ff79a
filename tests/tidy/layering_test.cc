// Style that is a test: the layering of src/ (src/layers.txt), `asm` only in its one folder, no
// wall clock inside policies, no upward include.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

using Rooms = std::map<std::string, std::set<std::string>>;

// Parses layers.txt; `order` receives the rooms from the lowest floor up.
Rooms read_layers(std::istream& in, std::vector<std::string>& order) {
  Rooms rooms;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto colon = line.find(':');
    const std::string room = line.substr(0, colon);
    order.push_back(room);
    std::istringstream allowed(line.substr(colon + 1));
    rooms[room] = {room, "base"};
    for (std::string name; allowed >> name;) rooms[room].insert(name);
  }
  return rooms;
}

// The complaints about one file's includes.
std::vector<std::string> check_includes(const Rooms& rooms, const std::string& room,
                                        const std::string& name, std::istream& in) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"/]+)/)re");
  std::vector<std::string> complaints;
  const auto it = rooms.find(room);
  if (it == rooms.end()) return {name + ": room '" + room + "' is not in src/layers.txt"};
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    if (!it->second.count(match[1])) {
      complaints.push_back(name + ": '" + room + "' may not include '" + match[1].str() + "'");
    }
  }
  return complaints;
}

fs::path source_dir() { return fs::path(EXPERTPLEX_SOURCE_DIR) / "src"; }

template <typename F>
void for_each_source(F f) {
  for (const auto& entry : fs::recursive_directory_iterator(source_dir())) {
    const auto extension = entry.path().extension();
    if (extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh") {
      const auto relative = fs::relative(entry.path(), source_dir());
      f(entry.path(), relative.begin()->string(), relative.string());
    }
  }
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Layering, ArrowsOnlyPointDownwards) {
  std::ifstream in(source_dir() / "layers.txt");
  std::vector<std::string> order;
  const Rooms rooms = read_layers(in, order);
  ASSERT_GE(order.size(), 8u);
  std::set<std::string> seen;
  for (const auto& room : order) {
    for (const auto& allowed : rooms.at(room)) {
      EXPECT_TRUE(allowed == room || allowed == "base" || seen.count(allowed))
          << "layers.txt: '" << room << "' names '" << allowed
          << "', which does not stand above it";
    }
    seen.insert(room);
  }
  int files = 0;
  for_each_source([&](const fs::path& path, const std::string& room, const std::string& name) {
    ++files;
    std::ifstream file(path);
    for (const auto& complaint : check_includes(rooms, room, name, file))
      ADD_FAILURE() << complaint;
  });
  EXPECT_GT(files, 10);
}

TEST(Layering, CanaryAnUpwardIncludeIsCaught) {
  std::istringstream layers("base:\nmodel:\ncpu: model\n");
  std::vector<std::string> order;
  const Rooms rooms = read_layers(layers, order);
  std::istringstream bad("#include \"cpu/worker.h\"\n");
  EXPECT_EQ(check_includes(rooms, "model", "model/x.h", bad).size(), 1u);
  std::istringstream good("#include \"base/result.h\"\n#include \"model/y.h\"\n");
  EXPECT_TRUE(check_includes(rooms, "cpu", "cpu/x.h", good).empty());
}

TEST(Tidy, AsmOnlyBehindOneWrapper) {
  static const std::regex assembler(R"(\basm\b\s*(volatile)?\s*\()");
  for_each_source([&](const fs::path& path, const std::string&, const std::string& name) {
    if (name.rfind("cuda/ptx/", 0) == 0 || name == "base/futex.h") return;
    EXPECT_FALSE(std::regex_search(read_all(path), assembler))
        << name << ": asm belongs in cuda/ptx";
  });
}

TEST(Tidy, PoliciesHaveNoClock) {
  // serving/engine.* and the server threads drive; everything else in serving and apk is stepped.
  static const std::regex clock(R"(\bnow_ns\s*\(|steady_clock|system_clock|\bsleep_for\b)");
  static const std::set<std::string> drivers = {"serving/engine.cc", "serving/prefill_server.cc",
                                                "serving/decode_server.cc"};
  for_each_source([&](const fs::path& path, const std::string& room, const std::string& name) {
    if ((room != "serving" && room != "apk") || drivers.count(name)) return;
    EXPECT_FALSE(std::regex_search(read_all(path), clock))
        << name << ": `now` comes in as an argument";
  });
}

TEST(Tidy, NobodySleepsInsteadOfWaiting) {
  static const std::regex sleeping(R"(\bsleep_for\b|\busleep\s*\(|\bnanosleep\s*\()");
  for_each_source([&](const fs::path& path, const std::string&, const std::string& name) {
    EXPECT_FALSE(std::regex_search(read_all(path), sleeping)) << name;
  });
}

TEST(Tidy, FilesStaySmall) {
  for_each_source([&](const fs::path& path, const std::string&, const std::string& name) {
    const std::string text = read_all(path);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 600) << name << ": one room or two?";
    EXPECT_EQ(text.find("TODO"), std::string::npos) << name;
  });
}

}  // namespace
