#include "model/safetensors.h"

#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/number_formats.h"

namespace expertplex {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used in place");

// The limit of the reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 16;

struct TypeEntry {
  const char* name;
  StoredType type;
  size_t bytes;
};
constexpr TypeEntry kTypes[] = {
    {"BOOL", StoredType::kBool, 1},      {"U8", StoredType::kU8, 1},
    {"I8", StoredType::kI8, 1},          {"F8_E4M3", StoredType::kF8E4m3, 1},
    {"F8_E5M2", StoredType::kF8E5m2, 1}, {"F8_E8M0", StoredType::kF8E8m0, 1},
    {"I16", StoredType::kI16, 2},        {"U16", StoredType::kU16, 2},
    {"F16", StoredType::kF16, 2},        {"BF16", StoredType::kBf16, 2},
    {"I32", StoredType::kI32, 4},        {"U32", StoredType::kU32, 4},
    {"F32", StoredType::kF32, 4},        {"I64", StoredType::kI64, 8},
    {"U64", StoredType::kU64, 8},        {"F64", StoredType::kF64, 8},
};

StoredType type_from_name(std::string_view name) {
  for (const auto& entry : kTypes) {
    if (name == entry.name) return entry.type;
  }
  return StoredType::kOther;
}

template <typename... Args>
Error broken(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// A non-negative integer that fits; anything else (negative, fraction, too large) has no value.
std::optional<int64_t> as_size(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  const auto number = value.get<int64_t>();
  if (number < 0) return std::nullopt;
  return number;
}

Result<std::vector<int64_t>> read_sizes(const Json& entry, const char* field) {
  const auto it = entry.find(field);
  if (it == entry.end() || !it->is_array() || it->size() > kMaxRank) {
    return broken("field '{}': expected an array of at most {} sizes", field, kMaxRank);
  }
  std::vector<int64_t> sizes;
  for (const auto& item : *it) {
    const auto size = as_size(item);
    if (!size) {
      return broken("field '{}': expected non-negative 64-bit integers, got {}", field,
                    item.is_number() ? item.dump() : json_type_name(item));
    }
    sizes.push_back(*size);
  }
  return sizes;
}

// Shape product times element size; no value on overflow.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, size_t element_bytes) {
  int64_t bytes = static_cast<int64_t>(element_bytes);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<StoredTensor> read_entry(const Json& entry, std::span<const std::byte> data) {
  if (!entry.is_object()) return broken("expected an object, got {}", json_type_name(entry));
  StoredTensor tensor;
  EXPERTPLEX_ASSIGN(const std::string dtype, get_string(entry, "dtype"));
  tensor.type = type_from_name(dtype);
  EXPERTPLEX_ASSIGN(tensor.shape, read_sizes(entry, "shape"));
  EXPERTPLEX_ASSIGN(const std::vector<int64_t> offsets, read_sizes(entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return broken("field 'data_offsets': expected [begin, end] with begin <= end, got [{}]",
                  fmt::join(offsets, ", "));
  }
  if (static_cast<uint64_t>(offsets[1]) > data.size()) {
    return broken(
        "field 'data_offsets': ends at byte {} but the file has {} bytes of data; it is truncated "
        "or "
        "its header is wrong, download it again",
        offsets[1], data.size());
  }
  tensor.byte_count = offsets[1] - offsets[0];
  tensor.data = data.data() + offsets[0];
  if (tensor.type == StoredType::kOther) return tensor;
  const auto expected = shape_bytes(tensor.shape, stored_type_bytes(tensor.type));
  if (!expected) return broken("shape {} overflows", describe_shape(tensor.shape));
  if (*expected != tensor.byte_count) {
    return broken("{} needs {} bytes, data_offsets [{}] give {}", describe(tensor), *expected,
                  fmt::join(offsets, ", "), tensor.byte_count);
  }
  return tensor;
}

// The tensors must tile the data exactly, as the format demands.
Result<void> check_tiling(const StoredTensors& tensors, std::span<const std::byte> data) {
  std::vector<std::pair<const StoredTensor*, const std::string*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&tensor, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->data, a.first->byte_count) <
           std::pair(b.first->data, b.first->byte_count);
  });
  int64_t end = 0;
  const std::string* previous = nullptr;
  for (const auto& [tensor, name] : order) {
    const int64_t begin = tensor->data - data.data();
    if (begin < end) {
      return broken("tensor '{}' overlaps tensor '{}': begins at data byte {}, expected {}", *name,
                    *previous, begin, end);
    }
    if (begin > end) {
      return broken("{} data bytes before tensor '{}' belong to no tensor", begin - end, *name);
    }
    end = begin + tensor->byte_count;
    previous = name;
  }
  if (static_cast<uint64_t>(end) != data.size()) {
    return broken("{} bytes after the last tensor belong to no tensor",
                  data.size() - static_cast<uint64_t>(end));
  }
  return {};
}

template <typename T, typename Out, typename Convert>
std::vector<Out> convert_all(const StoredTensor& tensor, Convert convert) {
  std::vector<Out> values(static_cast<size_t>(tensor.byte_count) / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, tensor.data + i * sizeof(T), sizeof(T));
    values[i] = convert(element);
  }
  return values;
}

template <typename T>
std::vector<int64_t> widen(const StoredTensor& tensor) {
  return convert_all<T, int64_t>(tensor, [](T x) { return static_cast<int64_t>(x); });
}

}  // namespace

const char* stored_type_name(StoredType type) {
  for (const auto& entry : kTypes) {
    if (type == entry.type) return entry.name;
  }
  return "an unknown dtype";
}

size_t stored_type_bytes(StoredType type) {
  for (const auto& entry : kTypes) {
    if (type == entry.type) return entry.bytes;
  }
  return 0;
}

int64_t StoredTensor::element_count() const {
  const size_t bytes = stored_type_bytes(type);
  return bytes == 0 ? 0 : byte_count / static_cast<int64_t>(bytes);
}

std::string describe_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string describe(const StoredTensor& tensor) {
  return fmt::format("{} {}", stored_type_name(tensor.type), describe_shape(tensor.shape));
}

Result<StoredTensors> parse_safetensors(std::span<const std::byte> file) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return broken("expected a safetensors file, got {} bytes; download it again", file.size());
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return broken("header length {} is above the format's limit of {}; not a safetensors file?",
                  header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > file.size() - sizeof(header_bytes)) {
    return broken(
        "header of {} bytes is longer than the file ({} bytes); it is truncated, download "
        "it again",
        header_bytes, file.size());
  }
  const auto header = file.subspan(sizeof(header_bytes), header_bytes);
  const auto data = file.subspan(sizeof(header_bytes) + header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  auto json = parse_json(text, 8);
  if (!json) return json.error().in("header");
  if (!json->is_object())
    return broken("header: expected an object, got {}", json_type_name(*json));
  StoredTensors tensors;
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") continue;
    auto tensor = read_entry(entry, data);
    if (!tensor) return tensor.error().in(fmt::format("tensor '{}'", name));
    tensors.emplace(name, std::move(*tensor));
  }
  EXPERTPLEX_TRY(check_tiling(tensors, data));
  return tensors;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  EXPERTPLEX_ASSIGN(const int descriptor, open_regular_file(path));
  struct stat info = {};
  ::fstat(descriptor, &info);
  const auto size = static_cast<size_t>(info.st_size);
  void* address = nullptr;
  if (size > 0) {
    address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const int map_errno = errno;
  ::close(descriptor);
  if (address == MAP_FAILED) {
    return make_error(ErrorCode::kResourceExhausted, "{}: cannot map {} bytes: {}", path, size,
                      std::strerror(map_errno));
  }
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->path_ = path;
  file->bytes_ = {static_cast<const std::byte*>(address), size};
  auto tensors = parse_safetensors(file->bytes_);
  if (!tensors) return tensors.error().in(path);
  file->tensors_ = std::move(*tensors);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

SafetensorsFile::~SafetensorsFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<std::vector<float>> to_floats(const StoredTensor& tensor) {
  switch (tensor.type) {
    case StoredType::kF32:
      return convert_all<float, float>(tensor, [](float x) { return x; });
    case StoredType::kF64:
      return convert_all<double, float>(tensor, [](double x) { return static_cast<float>(x); });
    case StoredType::kBf16:
      return convert_all<Bf16, float>(tensor, [](Bf16 x) { return to_float(x); });
    case StoredType::kF16:
      return convert_all<Fp16, float>(tensor, [](Fp16 x) { return to_float(x); });
    case StoredType::kF8E4m3:
      return convert_all<Fp8E4m3, float>(tensor, [](Fp8E4m3 x) { return to_float(x); });
    case StoredType::kF8E8m0:
      return convert_all<uint8_t, float>(
          tensor, [](uint8_t x) { return x == 255 ? NAN : std::ldexp(1.0f, int{x} - 127); });
    default:
      return broken("expected a floating-point tensor, got {}", describe(tensor));
  }
}

Result<std::vector<int64_t>> to_ints(const StoredTensor& tensor) {
  switch (tensor.type) {
    case StoredType::kBool:
    case StoredType::kU8:
      return widen<uint8_t>(tensor);
    case StoredType::kI8:
      return widen<int8_t>(tensor);
    case StoredType::kU16:
      return widen<uint16_t>(tensor);
    case StoredType::kI16:
      return widen<int16_t>(tensor);
    case StoredType::kU32:
      return widen<uint32_t>(tensor);
    case StoredType::kI32:
      return widen<int32_t>(tensor);
    case StoredType::kU64:
      return widen<uint64_t>(tensor);
    case StoredType::kI64:
      return widen<int64_t>(tensor);
    default:
      return broken("expected an integer tensor, got {}", describe(tensor));
  }
}

}  // namespace expertplex
