// Checkpoint: the tensors of a Hugging Face directory by name, whether they lie in one
// `model.safetensors` or in shards that `model.safetensors.index.json` names.
//
// Thread rules: immutable after opening.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/safetensors.h"

namespace expertplex {

class Checkpoint {
 public:
  struct Location {
    const StoredTensor* tensor = nullptr;
    const SafetensorsFile* file = nullptr;
  };

  // Maps every shard. A shard or tensor that the index names and that is not there is a refusal.
  static Result<std::shared_ptr<const Checkpoint>> open(const std::string& directory);

  // A null tensor if absent.
  Location find(std::string_view name) const;
  const std::map<std::string, Location, std::less<>>& tensors() const { return tensors_; }
  const std::vector<std::shared_ptr<const SafetensorsFile>>& files() const { return files_; }
  const std::string& directory() const { return directory_; }
  int64_t byte_count() const;  // of all files

  // Brings the files into memory, page by page, reporting bytes done; where they are larger than
  // most of the machine's memory, only advises the kernel.
  void read_ahead(const std::function<void(int64_t done, int64_t total)>& progress) const;

 private:
  Checkpoint() = default;
  Result<void> open_single(const std::string& path);
  Result<void> open_sharded(const std::string& index_path);

  std::string directory_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace expertplex
