// The reference results in tests/golden (README.md there says what they are).
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace expertplex::cpu::testing {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& directory) {
    auto file = SafetensorsFile::open(directory + "/golden.safetensors");
    EXPECT_TRUE(file.ok()) << file.error().message;
    if (file.ok()) file_ = *file;
  }
  std::vector<float> floats(int prompt, const std::string& name) const {
    auto values = to_floats(tensor(prompt, name));
    EXPECT_TRUE(values.ok()) << values.error().message;
    return *values;
  }
  std::vector<int32_t> ints(int prompt, const std::string& name) const {
    auto values = to_ints(tensor(prompt, name));
    EXPECT_TRUE(values.ok()) << values.error().message;
    return {values->begin(), values->end()};
  }

 private:
  const StoredTensor& tensor(int prompt, const std::string& name) const {
    const std::string full = "prompt." + std::to_string(prompt) + "." + name;
    const StoredTensor* found = file_->find(full);
    EXPERTPLEX_CHECK(found, "golden file without {}", full);
    return *found;
  }
  std::shared_ptr<const SafetensorsFile> file_;
};

constexpr int kGoldenPrompts = 3;
inline const char* const kGoldenModels[] = {"minimax_m2",      "qwen3_moe",
                                            "minimax_m2_fp8",  "qwen3_moe_fp8",
                                            "minimax_m2_bf16", "qwen3_moe_bf16_tied"};

}  // namespace expertplex::cpu::testing
