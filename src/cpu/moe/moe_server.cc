#include "cpu/moe/moe_server.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "apk/counters.h"
#include "base/check.h"
#include "base/futex.h"
#include "base/log.h"
#include "transport/window_memory.h"

namespace expertplex::cpu {
namespace {

using apk::ClaimStatus;
using apk::Phase;
using transport::kMoeReadyBell;

constexpr Nanoseconds kParkLimit = kSecond;  // how often an idle worker looks by itself
constexpr int kPrefillNice = 2;
constexpr uint32_t kAbortReason = 1;

// q of the plan: the clusters that prefer decode when an operation has the expected footprint.
uint32_t decode_clusters(const MoePlan& plan) {
  const uint32_t expected = plan.policy.budget.expected_footprint_milli / 1000;
  return apk::contended_decode_clusters(plan.policy.budget, expected, plan.limits.clusters);
}

}  // namespace

void CpuMoeExecutor::FreeStorage::operator()(void* storage) const { std::free(storage); }

Result<std::unique_ptr<CpuMoeExecutor>> CpuMoeExecutor::create(
    transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
    std::shared_ptr<const ModelWeights> weights) {
  EXPERTPLEX_ASSIGN(const MoePlan plan, plan_moe_server(config, spec));
  log_debug("{}", plan.describe());
  EXPERTPLEX_ASSIGN(auto window, fabric.create_window(config.window_name, plan.layout.total_bytes(),
                                                      transport::kMoeBells));
  EXPERTPLEX_ASSIGN(auto compute,
                    MoeCompute::create(plan, std::move(weights), window->local_data()));
  const size_t bytes = apk::storage_bytes(plan.limits);
  std::unique_ptr<void, FreeStorage> storage(std::aligned_alloc(apk::kStorageAlignment, bytes));
  EXPERTPLEX_CHECK(storage != nullptr);
  apk::initialise_storage(plan.limits, storage.get());
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (uint32_t slot = 0; slot < plan.slots(phase); ++slot) {
      apk::OperationTemplate shape = plan.of(phase);
      shape.slot = static_cast<uint8_t>(slot);
      const auto fault = apk::install_template(plan.limits, storage.get(), shape);
      EXPERTPLEX_CHECK(fault == apk::OperationFault::kNone, "{}", apk::operation_fault_name(fault));
    }
  }
  return std::unique_ptr<CpuMoeExecutor>(
      new CpuMoeExecutor(plan, config, std::move(window), std::move(compute), std::move(storage)));
}

CpuMoeExecutor::CpuMoeExecutor(const MoePlan& plan, const MoeServerConfig& config,
                               std::shared_ptr<transport::Window> window,
                               std::unique_ptr<MoeCompute> compute,
                               std::unique_ptr<void, FreeStorage> storage)
    : plan_(plan),
      name_(fmt::format("MoE server {}", config.index)),
      decode_clusters_(decode_clusters(plan)),
      window_(std::move(window)),
      compute_(std::move(compute)),
      storage_(std::move(storage)),
      scheduler_(plan_.limits, storage_.get()),
      inbox_(plan_, name_, config.wait_limit, window_, *compute_) {}

CpuMoeExecutor::~CpuMoeExecutor() {
  abort();
  for (std::thread& worker : workers_) worker.join();
}

Result<void> CpuMoeExecutor::start() {
  EXPERTPLEX_CHECK(workers_.empty() && !stopping_, "{}: started twice", name_);
  running_ = plan_.cluster_count;
  for (int cluster = 0; cluster < plan_.cluster_count; ++cluster) {
    workers_.emplace_back([this, cluster] {
      run_worker(static_cast<uint32_t>(cluster));
      std::lock_guard lock(mutex_);
      --running_;
      worker_left_.notify_all();
    });
    pthread_setname_np(
        workers_.back().native_handle(),
        fmt::format("moe-{}.{}", plan_.layout.server(), cluster).substr(0, 15).c_str());
  }
  return {};
}

Result<void> CpuMoeExecutor::stop(Nanoseconds limit) {
  stopping_ = true;
  window_->ring(kMoeReadyBell);
  std::optional<Error> late;
  {
    std::unique_lock lock(mutex_);
    if (!worker_left_.wait_for(lock, std::chrono::nanoseconds(limit),
                               [this] { return running_ == 0; })) {
      late = make_error(ErrorCode::kDeadlineExceeded,
                        "{} did not stop within {:.3f} s: {} operations were left", name_,
                        to_seconds(limit), inbox_.open_operations());
    }
  }
  if (late) abort();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  window_->raise_abort();  // who still waits for this server is told at once
  if (auto reason = failure()) return *reason;
  if (late) return *late;
  return {};
}

void CpuMoeExecutor::abort() {
  aborted_ = true;
  scheduler_.abort(kAbortReason);
  window_->raise_abort();
}

void CpuMoeExecutor::fail(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  log_error("{}; the server aborts", error.message);
  abort();
}

std::optional<Error> CpuMoeExecutor::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool CpuMoeExecutor::aborted() const { return aborted_ || window_->aborted(); }

void CpuMoeExecutor::lower_priority(uint32_t cluster) const {
  if (cluster < decode_clusters_) return;
  // On Linux a thread id names that thread alone. Without the right to it nothing is lost but
  // speed.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPrefillNice);
}

void CpuMoeExecutor::run_worker(uint32_t cluster) {
  lower_priority(cluster);
  MoeCompute::Workspace workspace = compute_->make_workspace();
  apk::PipelineState pipeline;
  pipeline.cluster = cluster;
  bool was_prefill = false;    // the last tile
  Nanoseconds idle_since = 0;  // 0: has just worked
  while (!aborted()) {
    const uint32_t ticket = window_->bell_ticket(kMoeReadyBell);
    const bool looked = look();
    const apk::Claim claim = scheduler_.next(pipeline);
    if (claim.status == ClaimStatus::kAbort) return;
    if (claim.status == ClaimStatus::kTile) {
      if (was_prefill && claim.tile.phase == Phase::kDecode &&
          inbox_.open_operations(Phase::kPrefill) > 0) {
        preemptions_.fetch_add(1, std::memory_order_relaxed);
      }
      was_prefill = claim.tile.phase == Phase::kPrefill;
      work(claim.tile, workspace);
      idle_since = 0;
      continue;
    }
    if (stopping_) {
      if (looked && inbox_.open_operations() == 0) return;
      spin_pause();
      continue;
    }
    const Nanoseconds now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < transport::kSpinBeforePark) {
      spin_pause();
    } else {
      window_->park(kMoeReadyBell, ticket, kParkLimit);
    }
  }
}

bool CpuMoeExecutor::look() {
  auto agent = scheduler_.try_become_agent();
  if (!agent) return false;
  const auto submitted = inbox_.poll(agent);
  if (!submitted) {
    fail(submitted.error());
    return true;
  }
  agent.decide(plan_.policy);
  agent.release();
  if (*submitted) window_->ring(kMoeReadyBell);
  return !*submitted;
}

void CpuMoeExecutor::work(const apk::TileDescriptor& tile, MoeCompute::Workspace& workspace) {
  const auto computed = compute_->run(tile, workspace);
  if (!computed) {
    fail(computed.error().in(name_));
    return;
  }
  if (scheduler_.commit(tile)) {
    const uint32_t row_blocks = scheduler_.operation(tile).row_blocks;
    scheduler_.retire(tile);
    inbox_.finish(tile, row_blocks);
  }
  window_->ring(kMoeReadyBell);
}

MoeStatistics CpuMoeExecutor::statistics() const {
  MoeStatistics statistics;
  inbox_.add_statistics(&statistics);
  const apk::SchedulerCounters counters = apk::read_counters(scheduler_);
  statistics.prefill_tiles = counters.phase_tiles(Phase::kPrefill);
  statistics.decode_tiles = counters.phase_tiles(Phase::kDecode);
  statistics.preemptions = preemptions_.load(std::memory_order_relaxed);
  return statistics;
}

}  // namespace expertplex::cpu
