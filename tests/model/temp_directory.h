// A directory of its own for one test, and writers of small checkpoints into it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"

namespace expertplex {

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "expertplex-test-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
  }
  std::string read(const std::string& name) const {
    std::ifstream stream(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void copy_from(const std::string& directory) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().filename() == "golden.safetensors") continue;
      std::filesystem::copy_file(entry.path(), file(entry.path().filename().string()));
    }
  }

 private:
  std::string path_;
};

// A safetensors file with this header text and data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

// A safetensors file taken apart, to be changed and put together again.
struct EditableTensors {
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::vector<Tensor> tensors;

  explicit EditableTensors(const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const Json header = Json::parse(file.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
      tensors.push_back({name, entry["dtype"], entry["shape"],
                         file.substr(8 + length + offsets[0], offsets[1] - offsets[0])});
    }
  }

  Tensor& at(const std::string& name) {
    for (auto& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return tensors.front();
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  std::string bytes() const {
    Json header = Json::object();
    std::string data;
    for (const auto& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    return safetensors_bytes(header.dump(), data);
  }
};

}  // namespace expertplex
