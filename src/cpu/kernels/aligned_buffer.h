// AlignedBuffer<T>: memory for vector kernels: starts at a cache line, so that no load crosses two;
// not initialised, so that large buffers cost memory only as far as they are used.
//
// Thread rules: as memory.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace expertplex::cpu {

template <typename T>
class AlignedBuffer {
 public:
  static_assert(std::is_trivial_v<T>);
  static constexpr std::align_val_t kAlignment{64};

  AlignedBuffer() = default;
  AlignedBuffer(size_t rows, size_t columns)
      : data_(static_cast<T*>(operator new[](rows* columns * sizeof(T), kAlignment))) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* data) const { operator delete[](data, kAlignment); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace expertplex::cpu
