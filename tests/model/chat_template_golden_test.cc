// Templates in the style of real models, and one construct each, against jinja2.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "golden_files.h"
#include "model/chat_template.h"

namespace expertplex {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ChatTemplateGolden, SameText) {
  const std::string directory = golden_directory("templates/");
  std::ifstream file(directory + "cases.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const auto test = nlohmann::ordered_json::parse(line);
    const std::string name = test.value("template", std::string());
    const std::string source =
        name.empty() ? test["source"].get<std::string>() : read_file(directory + name);
    const auto parsed = ChatTemplate::parse(source);
    ASSERT_TRUE(parsed) << "case " << count + 1 << ": " << parsed.error().message << "\n" << source;
    const auto text = (*parsed)->render_ordered(test["variables"]);
    const std::string what = name.empty() ? source : test["variables"].dump();
    if (test.contains("error")) {
      ASSERT_FALSE(text) << what;
      EXPECT_EQ(text.error().message, test["error"].get<std::string>()) << what;
      EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    } else {
      ASSERT_TRUE(text) << text.error().message << "\ncase " << count + 1 << ": " << what;
      EXPECT_EQ(*text, test["text"].get<std::string>()) << "case " << count + 1 << ": " << what;
    }
  }
  EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace expertplex
