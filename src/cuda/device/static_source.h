// Tile source of an ordinary launch: the tiles of one operation, strided over the CTAs. A pure
// function of the CTA's index, so there is nothing to decide and nothing to commit.
#pragma once

#include "apk/device_memory.h"
#include "apk/tile_order.h"
#include "cuda/device/static_operation.h"
#include "cuda/device/work_queue.h"

namespace expertplex::cuda {

class StaticSource {
 public:
  using Parameters = StaticSourceParameters;
  struct Commit {
    __device__ __forceinline__ explicit Commit(const Parameters&) {}
    __device__ __forceinline__ void operator()(const apk::TileDescriptor&) const {}
  };

  static __device__ __forceinline__ void run_agent(const Parameters&) {}

  // The scheduler warp of a CTA, one thread.
  template <GemmConfig kConfig>
  static __device__ __forceinline__ void run(const Parameters& parameters,
                                             SharedLayout<kConfig>* shared) {
    WorkQueue<kConfig, Pipeline::kMain> main(shared);
    if (!feed(parameters.main, main)) return;
    if (kConfig.has_resident()) {
      WorkQueue<kConfig, Pipeline::kResident> resident(shared);
      feed(parameters.resident, resident);
    }
  }

 private:
  template <typename Queue>
  static __device__ __forceinline__ bool feed(const StaticOperation& operation, Queue& queue) {
    if (operation.binding != nullptr) {
      const apk::OperationView view{operation.shape, operation.fields, operation.experts,
                                    operation.block_expert};
      const apk::OperationFields fields = *operation.fields;
      for (uint32_t t = blockIdx.x; t < fields.gate_up_tiles; t += gridDim.x) {
        const apk::TileDescriptor tile = apk::gate_up_tile<apk::DeviceMemory>(view, fields, t);
        if (!queue.wait_for_room()) return false;
        queue.push(operation.binding, tile);
      }
    }
    if (!queue.wait_for_room()) return false;
    queue.push_end();
    return true;
  }
};

}  // namespace expertplex::cuda
