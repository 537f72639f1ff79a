#include "model/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/shorten.h"

namespace expertplex {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadAheadBytes = size_t{64} << 20;
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

int64_t physical_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// Faults in [begin, begin + size); begin is page-aligned.
void populate(const std::byte* begin, size_t size) {
  if (madvise(const_cast<std::byte*>(begin), size, MADV_POPULATE_READ) == 0) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < size; at += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(begin + at));
  }
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open(const std::string& directory) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->directory_ = directory;
  const fs::path root(directory);
  const fs::path single = root / "model.safetensors";
  const fs::path index = root / "model.safetensors.index.json";
  EXPERTPLEX_ASSIGN(const bool has_single, file_exists(single.string()));
  EXPERTPLEX_ASSIGN(const bool has_index, file_exists(index.string()));
  if (has_single) {
    EXPERTPLEX_TRY(checkpoint->open_single(single.string()));
  } else if (has_index) {
    EXPERTPLEX_TRY(checkpoint->open_sharded(index.string()));
  } else {
    std::error_code ignored;
    const bool pickled = fs::exists(root / "pytorch_model.bin", ignored) ||
                         fs::exists(root / "pytorch_model.bin.index.json", ignored);
    return make_error(
        ErrorCode::kNotFound,
        "{}: expected model.safetensors or model.safetensors.index.json, got {}", directory,
        pickled ? "only pytorch_model.bin; convert it with save_pretrained" : "neither");
  }
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

Result<void> Checkpoint::open_single(const std::string& path) {
  EXPERTPLEX_ASSIGN(auto file, SafetensorsFile::open(path));
  for (const auto& [name, tensor] : file->tensors()) {
    tensors_.emplace(name, Location{&tensor, file.get()});
  }
  files_.push_back(std::move(file));
  return {};
}

Result<void> Checkpoint::open_sharded(const std::string& index_path) {
  EXPERTPLEX_ASSIGN(const Json index, read_json_file(index_path));
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: field 'weight_map': expected an object of tensor name to file name",
                      index_path);
  }
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, shard] : weight_map->items()) {
    const bool plain = shard.is_string() &&
                       fs::path(shard.get<std::string>()).filename() == shard.get<std::string>() &&
                       shard != ".." && shard != "." && shard != "";
    if (!plain) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "{}: tensor '{}': expected the name of a file in the same directory, got {}", index_path,
          shorten(name, 200),
          shard.is_string() ? shorten(shard.get<std::string>(), 200) : json_type_name(shard));
    }
    const auto [entry, added] = opened.try_emplace(shard.get<std::string>(), nullptr);
    if (added) {
      const std::string path = (fs::path(directory_) / entry->first).string();
      EXPERTPLEX_ASSIGN(const bool exists, file_exists(path));
      if (!exists) {
        return make_error(ErrorCode::kNotFound,
                          "{}: names shard '{}', which is not there; download it into {}",
                          index_path, entry->first, directory_);
      }
      EXPERTPLEX_ASSIGN(auto file, SafetensorsFile::open(path));
      entry->second = file.get();
      files_.push_back(std::move(file));
    }
    const StoredTensor* tensor = entry->second->find(name);
    if (!tensor) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: tensor '{}' is missing, though {} says that it is there; index and "
                        "shards are of different versions, download both again",
                        entry->second->path(), name, index_path);
    }
    tensors_.emplace(name, Location{tensor, entry->second});
  }
  return {};
}

Checkpoint::Location Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? Location{} : it->second;
}

int64_t Checkpoint::byte_count() const {
  int64_t total = 0;
  for (const auto& file : files_) total += static_cast<int64_t>(file->bytes().size());
  return total;
}

void Checkpoint::read_ahead(
    const std::function<void(int64_t done, int64_t total)>& progress) const {
  const int64_t total = byte_count();
  const bool fits = total / 8 * 10 <= physical_memory_bytes();
  int64_t done = 0;
  if (progress) progress(done, total);
  for (const auto& file : files_) {
    const auto bytes = file->bytes();
    madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_WILLNEED);
    for (size_t at = 0; at < bytes.size(); at += kReadAheadBytes) {
      const size_t size = std::min(kReadAheadBytes, bytes.size() - at);
      if (fits) populate(bytes.data() + at, size);
      done += static_cast<int64_t>(size);
      if (progress) progress(done, total);
    }
  }
}

}  // namespace expertplex
