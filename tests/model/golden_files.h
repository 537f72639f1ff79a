// Where the golden files lie, and how tests read them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace expertplex {

inline std::string golden_directory(const std::string& name) {
  return std::string(EXPERTPLEX_SOURCE_DIR) + "/tests/golden/" + name;
}

// A file of one JSON value per line.
inline std::vector<Json> read_json_lines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<Json> values;
  for (std::string line; std::getline(file, line);) values.push_back(Json::parse(line));
  return values;
}

}  // namespace expertplex
