#include "cuda/device/apk_source.h"
#include "cuda/kernels/apk_launch.h"
#include "cuda/kernels/gemm_kernel.h"

namespace expertplex::cuda {
namespace {

struct Apk {
  static constexpr GemmConfig kValue{};
};
constexpr auto kApkKernel = gemm_kernel<Apk, ApkSource>;
constexpr size_t kApkShared = sizeof(SharedLayout<Apk::kValue>);

__device__ void send(ApkSend& send) {
  for (uint32_t e = 0; e < send.experts; ++e) {
    apk::DeviceMemory::store(&send.slot->rows_per_expert[e],
                             apk::pack_epoch_value(send.epoch, send.rows[e]), apk::Relaxed{},
                             apk::SystemScope{});
  }
  send.slot->request = send.request;
  // A release in two halves, so that the time is that of the ready word itself.
  __threadfence_system();
  send.sent_ns = ptx::global_time_ns();
  apk::DeviceMemory::store(&send.slot->ready,
                           apk::pack_epoch_value(send.epoch, send.layer + 1), apk::Relaxed{},
                           apk::SystemScope{});
}

// False: the limit has passed.
__device__ bool wait_done(ApkSend& send, uint64_t limit_ns) {
  const uint64_t expected = apk::pack_epoch_value(send.epoch, 1);
  while (apk::DeviceMemory::load(&send.done->value, apk::Acquire{}, apk::DeviceScope{}) !=
         expected) {
    if (ptx::global_time_ns() - send.sent_ns > limit_ns) return false;
  }
  send.done_ns = ptx::global_time_ns();
  return true;
}

__global__ void sender_kernel(ApkSenders senders, uint64_t limit_ns) {
  const uint64_t start = ptx::global_time_ns();
  const ApkSender& mine = senders.sender[blockIdx.x];
  for (uint32_t i = 0; i < mine.count; ++i) {
    while (ptx::global_time_ns() - start < mine.sends[i].not_before_ns) {
    }
    send(mine.sends[i]);
    if (!wait_done(mine.sends[i], limit_ns)) return;
  }
}

}  // namespace

const size_t kApkParkedVectors = kParkedVectors;

const char* apk_barrier_name(uint32_t offset) {
  using Shared = SharedLayout<Apk::kValue>;
  struct Group {
    size_t first;
    const char* name;
  };
  constexpr Group kGroups[] = {
      {offsetof(Shared, inbox_seen_full), "inbox_seen_full"},
      {offsetof(Shared, control), "the producers' words"},
      {offsetof(Shared, resident_work_empty), "resident_work_empty"},
      {offsetof(Shared, resident_work_done), "resident_work_done"},
      {offsetof(Shared, resident_work_full), "resident_work_full"},
      {offsetof(Shared, main_work_empty), "main_work_empty"},
      {offsetof(Shared, main_work_done), "main_work_done"},
      {offsetof(Shared, main_work_full), "main_work_full"},
      {offsetof(Shared, resident_empty), "resident_empty"},
      {offsetof(Shared, resident_full), "resident_full"},
      {offsetof(Shared, main_empty), "main_empty"},
      {offsetof(Shared, main_full), "main_full"}};
  for (const Group& group : kGroups) {
    if (offset >= group.first) return group.name;
  }
  return "an unknown word";
}

cudaError_t prepare_apk_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncSetAttribute(kApkKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kApkShared));
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kApkKernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, sender_kernel);
  return error;
}

cudaError_t launch_apk(const ApkParameters& parameters, cudaStream_t stream) {
  kApkKernel<<<parameters.limits.clusters, Apk::kValue.threads(), kApkShared, stream>>>(parameters);
  return cudaGetLastError();
}

cudaError_t launch_apk_senders(const ApkSenders& senders, uint64_t limit_ns, cudaStream_t stream) {
  sender_kernel<<<kMaxApkSenders, 1, 0, stream>>>(senders, limit_ns);
  return cudaGetLastError();
}

}  // namespace expertplex::cuda
