// Owned device memory. Allocate before and free after any persistent kernel: cudaFree waits for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <utility>

#include "cuda/host/cuda_result.h"

namespace expertplex::cuda {

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  static Result<DeviceBuffer> allocate(size_t count) {
    DeviceBuffer buffer;
    buffer.count_ = count;
    void* data = nullptr;
    EXPERTPLEX_TRY(cuda_result(cudaMalloc(&data, count * sizeof(T)), "cudaMalloc"));
    buffer.data_ = static_cast<T*>(data);
    return buffer;
  }
  static Result<DeviceBuffer> copy_of(std::span<const T> host) {
    EXPERTPLEX_ASSIGN(DeviceBuffer buffer, allocate(host.size()));
    EXPERTPLEX_CUDA_TRY(
        cudaMemcpy(buffer.data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
    return buffer;
  }

  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace expertplex::cuda
