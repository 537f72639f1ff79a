// Tile source of an ordinary launch: CTA c computes the tiles c, c + grid, c + 2 * grid, ... of one
// operation per pipeline. No other CTA, no words, no order between tiles.
#pragma once

#include "apk/device_memory.h"
#include "apk/tile_order.h"
#include "cuda/device/static_operation.h"
#include "cuda/device/work_queue.h"
#include "cuda/ptx/warp.h"

namespace expertplex::cuda {

class StaticSource {
 public:
  using Parameters = StaticSourceParameters;
  struct Commit {
    __device__ __forceinline__ explicit Commit(const Parameters&) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor&) {}
  };
  struct Parking {
    static constexpr bool kUsed = false;
    __device__ __forceinline__ explicit Parking(const Parameters&) {}
    __device__ __forceinline__ float4* operator()() const { return nullptr; }
  };
  struct Trace {
    __device__ __forceinline__ Trace(const Parameters&, ApkTraceKind) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor&, uint32_t) const {}
    __device__ __forceinline__ void parked() const {}
  };

  // All tiles come by the scheduler warp's queue.
  template <GemmConfig kConfig>
  struct Inbox {
    static constexpr bool kUsed = false;
    __device__ __forceinline__ Inbox(const Parameters&, SharedLayout<kConfig>*) {}
    __device__ __forceinline__ void glance() const {}
    __device__ __forceinline__ bool has_news() const { return false; }
    __device__ __forceinline__ void look() const {}
  };

  template <typename Committer>
  static __device__ __forceinline__ void run_agent(const Parameters&, Committer& committer) {
    committer.run();
  }
  static __device__ __forceinline__ void report(const Parameters&, const uint32_t*) {}

  // The scheduler warp of a CTA.
  template <GemmConfig kConfig>
  static __device__ __forceinline__ void run(const Parameters& parameters,
                                             SharedLayout<kConfig>* shared) {
    if (!ptx::elect_one()) return;
    WorkQueue<kConfig, Queue::kMain> main(shared);
    if (!feed(parameters.main, main)) return;
    if (kConfig.has_resident()) {
      WorkQueue<kConfig, Queue::kResident> resident(shared);
      feed(parameters.resident, resident);
    }
  }

 private:
  template <typename WorkQueue>
  static __device__ __forceinline__ bool feed(const StaticOperation& operation, WorkQueue& queue) {
    if (operation.binding != nullptr) {
      const apk::OperationView view{operation.shape, operation.fields, operation.blocks};
      const uint32_t epoch = operation.fields->epoch, tiles = operation.fields->gate_up_tiles;
      const BindingHead head = load_head(operation.binding);
      for (uint32_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const apk::TileDescriptor tile =
            apk::gate_up_tile<apk::DeviceMemory>(view, epoch, tiles - t);
        if (!queue.wait_for_room()) return false;
        queue.push(operation.binding, head, tile);
      }
    }
    if (!queue.wait_for_room()) return false;
    queue.push_end();
    return true;
  }
};

}  // namespace expertplex::cuda
