// CpuMoeExecutor: an MoE server whose CTA clusters are worker threads that run src/apk unchanged.
//
// A worker's round, between tiles: take a ticket of the window's ready bell; if the deciding-agent
// role is free, poll the words, submit what is ready and decide; ask the scheduler for a tile;
// compute, commit, and publish the done word if that finished the operation. Without a tile it
// spins for some 20 us and then parks on the bell. Decode preempts prefill at tile boundaries.
//
// Who parks misses nothing: the ticket is older than the look, every ready word rings the bell, and
// so does whoever submits an operation or commits a tile (which may have opened the next stage, or
// freed a channel). Whoever found the agent role taken relies on its holder, whose own ticket is
// older than the holder's look.
//
// Clusters [q, all) prefer prefill under contention; their threads run at a lower OS priority, so
// that with more threads than cores decode is scheduled first: a CPU-only measure.
//
// Errors: a fault in what arrived, or an abort word raised by a peer, aborts the server: the reason
// is logged, all waits on its window end, stop() returns it. Thread rules: as MoeExecutor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apk/scheduler.h"
#include "backend/backend.h"
#include "cpu/moe/moe_compute.h"
#include "cpu/moe/moe_inbox.h"
#include "cpu/moe/moe_plan.h"

namespace expertplex::cpu {

class CpuMoeExecutor final : public MoeExecutor {
 public:
  // Plans, logs sizes, creates the window `config.window_name` and all buffers; no thread yet.
  static Result<std::unique_ptr<CpuMoeExecutor>> create(
      transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights);
  ~CpuMoeExecutor() override;

  Result<void> start() override;
  Result<void> stop(Nanoseconds limit) override;
  void abort() override;
  MoeStatistics statistics() const override;

 private:
  using Scheduler = apk::TileScheduler<apk::HostMemory>;
  struct FreeStorage {
    void operator()(void* storage) const;
  };

  CpuMoeExecutor(const MoePlan& plan, const MoeServerConfig& config,
                 std::shared_ptr<transport::Window> window, std::unique_ptr<MoeCompute> compute,
                 std::unique_ptr<void, FreeStorage> storage);

  void run_worker(uint32_t cluster);
  // One round of the deciding agent. True: it found nothing new; false: it did, or somebody else
  // has the role.
  bool look();
  void work(const apk::TileDescriptor& tile, MoeCompute::Workspace& workspace);
  void fail(const Error& error);
  bool aborted() const;
  void lower_priority(uint32_t cluster) const;
  // The reason of an abort, if there was one.
  std::optional<Error> failure() const;

  const MoePlan plan_;
  const std::string name_;
  const uint32_t decode_clusters_;  // [0, this) prefer decode under contention
  std::shared_ptr<transport::Window> window_;
  std::unique_ptr<MoeCompute> compute_;
  std::unique_ptr<void, FreeStorage> storage_;
  Scheduler scheduler_;
  MoeInbox inbox_;

  std::atomic<bool> stopping_{false}, aborted_{false};
  std::atomic<uint64_t> preemptions_{0};
  std::vector<std::thread> workers_;

  mutable std::mutex mutex_;
  std::condition_variable worker_left_;
  int running_ = 0;               // guarded by mutex_
  std::optional<Error> failure_;  // guarded by mutex_
};

}  // namespace expertplex::cpu
