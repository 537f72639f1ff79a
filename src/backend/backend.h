// Backend: makes the executors of one kind of device. src/cli chooses one and hands it to serving.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/attention_executor.h"
#include "backend/kv_cache.h"
#include "backend/moe_executor.h"
#include "base/result.h"
#include "model/weights.h"
#include "transport/moe_client.h"
#include "transport/window.h"

namespace expertplex {

// How activations travel to the experts: `kNative` in the backend's compute type, `kFp8` quantised
// per row and 128 columns as the GPU does (results come back in BF16).
enum class MoeActivation { kNative, kFp8 };

// Decode and prefill sharing of an MoE server's clusters (apk/budget.h).
struct SharingConfig {
  bool preemption = true;   // off: a cluster finishes a prefill operation before it looks at decode
  int decode_clusters = 1;  // q: what decode gets while both phases are ready
  int max_decode_clusters = 1;  // Q_max
  double expected_x_moe = 0;    // x_star; 0 = q is used as it is
};

struct MoeServerConfig {
  int index = 0;
  std::string window_name;
  transport::MoeBufferConfig buffers;
  int cluster_count = 2;
  MoeActivation activation = MoeActivation::kNative;
  SharingConfig sharing;
  Nanoseconds wait_limit = 30 * kSecond;
};

struct AttentionServerConfig {
  apk::Phase phase = apk::Phase::kDecode;
  int index = 0;  // among the servers of its phase
  std::string name;
  transport::MoeClient::Config moe;
  KvCacheShape kv_cache;
  std::byte* kv_cache_data = nullptr;  // inside the server's window; pages as KvCacheShape says
  int max_rows = 0;                    // of an iteration
  MoeActivation activation = MoeActivation::kNative;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu (avx512)"
  // Bytes of one dispatched and one combined row (transport::MoeBufferConfig).
  virtual size_t dispatch_row_bytes(const ModelSpec& spec, MoeActivation activation) const = 0;
  virtual size_t combine_row_bytes(const ModelSpec& spec, MoeActivation activation) const = 0;
  virtual int prefill_page_rows() const = 0;
  // The KV element type for a model.
  virtual DataType kv_cache_type(const ModelWeights& weights) const = 0;
  virtual int default_moe_clusters() const = 0;  // per MoE server
  // Added to the niceness of prefill attention threads, for devices that share the host's cores
  // with decode: decode gets the cores first. The CPU backend says 10.
  virtual int prefill_thread_niceness() const { return 0; }

  virtual Result<std::unique_ptr<MoeExecutor>> create_moe_executor(
      transport::Fabric& fabric, const MoeServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) = 0;
  virtual Result<std::unique_ptr<AttentionExecutor>> create_attention_executor(
      transport::Fabric& fabric, const AttentionServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights) = 0;
};

}  // namespace expertplex
