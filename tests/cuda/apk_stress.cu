#include "apk/device_memory.h"
#include "cuda/apk_stress.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {
namespace {

constexpr uint32_t kThreads = 512;

__device__ uint32_t random_word(uint32_t seed, uint32_t slot, uint32_t epoch, uint32_t n) {
  uint32_t x = seed ^ slot * 0x9E3779B9u ^ epoch * 0x85EBCA6Bu ^ n * 0xC2B2AE35u;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// Rows of each expert: often none, sometimes all of them on one, else anything.
__device__ uint32_t random_rows(const StressSlot& s, uint32_t seed, uint32_t epoch, uint32_t e) {
  const uint32_t kind = random_word(seed, blockIdx.x, epoch, 1000) % 8;
  const uint32_t word = random_word(seed, blockIdx.x, epoch, e);
  if (kind == 0) return 0;
  if (kind == 1) return e == epoch % s.experts ? s.most_rows : 0;
  return word % 4 == 0 ? 0 : (word >> 8) % (s.most_rows + 1);
}

__device__ void send(const StressSlot& s, uint32_t epoch, const uint32_t* rows) {
  for (uint32_t e = 0; e < s.experts; ++e) {
    apk::DeviceMemory::store(&s.mailbox->rows_per_expert[e], apk::pack_epoch_value(epoch, rows[e]),
                             apk::Relaxed{}, apk::SystemScope{});
  }
  s.mailbox->request = ApkRequest{};
  apk::DeviceMemory::store(&s.mailbox->ready, apk::pack_epoch_value(epoch, 1),
                           apk::Release{}, apk::SystemScope{});
}

__device__ bool wait_done(const StressSlot& s, uint32_t epoch, uint64_t limit_ns) {
  const uint64_t start = ptx::global_time_ns();
  while (apk::DeviceMemory::load(&s.done->value, apk::Acquire{}, apk::SystemScope{}) !=
         apk::pack_epoch_value(epoch, 1)) {
    if (ptx::global_time_ns() - start > limit_ns) return false;
  }
  return true;
}

// All threads: every element of the output, which is poison again afterwards. False: a wrong one,
// described in `result` by one of those who found any.
__device__ bool compare(const StressSlot& s, uint32_t epoch, const uint32_t* rows, uint16_t poison,
                        StressResult* result) {
  const uint32_t words = s.columns / 2;
  const uint32_t poisons = poison | uint32_t{poison} << 16;
  bool right = true;
  for (uint32_t e = 0; e < s.experts; ++e) {
    for (uint32_t i = threadIdx.x; i < s.capacity * words; i += kThreads) {
      const size_t at = size_t{e} * s.capacity * words + i;
      auto* output = reinterpret_cast<uint32_t*>(s.output) + at;
      const uint32_t row = i / words;
      const uint32_t got = __ldcg(output);
      const uint32_t want = row < rows[e]
                                ? __ldg(reinterpret_cast<const uint32_t*>(s.expected) + at)
                                : poisons;
      if (got != want) {
        right = false;
        result->epoch = epoch, result->expert = e, result->row = row, result->rows = rows[e];
        result->column = i % words * 2, result->got = got, result->expected = want;
      }
      if (got != poisons) __stcg(output, poisons);
    }
  }
  return __syncthreads_and(right);
}

__global__ void __launch_bounds__(kThreads)
    stress_kernel(StressSlots slots, uint32_t operations, uint16_t poison, uint32_t seed,
                  uint64_t limit_ns, StressResult* results) {
  const StressSlot& s = slots.slot[blockIdx.x];
  StressResult* result = &results[blockIdx.x];
  __shared__ uint32_t rows[kMostStressExperts];
  for (uint32_t epoch = 1; epoch <= operations; ++epoch) {
    if (threadIdx.x < s.experts) rows[threadIdx.x] = random_rows(s, seed, epoch, threadIdx.x);
    __syncthreads();
    bool done = true;
    if (threadIdx.x == 0) {
      const uint32_t pause = random_word(seed, blockIdx.x, epoch, 2000);
      const uint64_t start = ptx::global_time_ns();
      while (pause % 4 == 0 && ptx::global_time_ns() - start < pause / 4 % 20'000) {
      }
      send(s, epoch, rows);
      done = wait_done(s, epoch, limit_ns);
    }
    if (!__syncthreads_and(done)) {
      if (threadIdx.x == 0) result->fault = StressFault::kNotDone, result->epoch = epoch;
      return;
    }
    if (!compare(s, epoch, rows, poison, result)) {
      if (threadIdx.x == 0) result->fault = StressFault::kWrongBits;
      return;
    }
    if (threadIdx.x == 0) result->operations = epoch;
  }
}

}  // namespace

cudaError_t launch_stress(const StressSlots& slots, uint32_t count, uint32_t operations,
                          uint16_t poison, uint32_t seed, uint64_t limit_ns, StressResult* results,
                          cudaStream_t stream) {
  stress_kernel<<<count, kThreads, 0, stream>>>(slots, operations, poison, seed, limit_ns, results);
  return cudaGetLastError();
}

cudaError_t prepare_stress() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, stress_kernel);
}

}  // namespace expertplex::cuda
