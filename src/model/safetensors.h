// Reading `.safetensors` files: an 8-byte little-endian header length, a JSON header, then the
// tensors' bytes. The file is memory-mapped and nothing is copied. Everything that the header
// claims is checked on opening: lengths, dtypes, shape times element size, offsets inside the file,
// no overlap and no hole (the format's own rule), so that a view never leaves the mapping.
//
// Thread rules: immutable after opening. A file must not shrink while it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace expertplex {

// Element types as files spell them ("F8_E4M3", "BF16", ...). kOther: a type of a newer format
// version; such a tensor can be listed but not read.
enum class StoredType {
  kBool,
  kU8,
  kI8,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kOther
};

const char* stored_type_name(StoredType type);
size_t stored_type_bytes(StoredType type);  // 0 for kOther

// A tensor inside a mapped file; valid as long as the file. Row-major, little-endian, and aligned
// to nothing in particular.
struct StoredTensor {
  StoredType type = StoredType::kOther;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t byte_count = 0;

  int64_t element_count() const;
};

// "F32 [2, 3]", for messages.
std::string describe(const StoredTensor& tensor);
std::string describe_shape(std::span<const int64_t> shape);

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// The tensors of a whole file in memory. Errors do not name the file: the caller adds it.
Result<StoredTensors> parse_safetensors(std::span<const std::byte> file);

class SafetensorsFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const StoredTensors& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  // null if absent

 private:
  SafetensorsFile() = default;
  std::string path_;
  std::span<const std::byte> bytes_;
  StoredTensors tensors_;
};

// Copies with conversion. Floats from F32, F64, BF16, F16, F8_E4M3, F8_E8M0; integers from every
// integer type and BOOL. Anything else is kInvalidArgument.
Result<std::vector<float>> to_floats(const StoredTensor& tensor);
Result<std::vector<int64_t>> to_ints(const StoredTensor& tensor);

}  // namespace expertplex
