// The CPU's AttentionExecutor: embedding, the layers (AttentionLayer, then the experts through
// MoeClient), final norm, LM head and sampling, on the thread that calls run_iteration.
//
// Order within a layer: all chunks of rows go through the dense half, then all rows are dispatched;
// while the MoE servers work, on_layer_cached lets the caller hand the layer's KV pages on; then
// the results are added in float32, ascending expert id, and the sum goes onto the residual stream.
//
// Buffers that span the iteration's rows are sized for max_rows but only touched as far as they are
// used. Thread rules: one thread, except abort().
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "backend/attention_executor.h"
#include "backend/backend.h"
#include "cpu/attention/attention_layer.h"
#include "cpu/attention/sampling.h"
#include "cpu/kernels/aligned_buffer.h"
#include "model/weights.h"
#include "transport/moe_client.h"

namespace expertplex::cpu {

class CpuAttentionExecutor final : public AttentionExecutor {
 public:
  // kInvalidArgument for a configuration that does not fit the model, kUnsupported for a head size
  // the kernels do not cover.
  static Result<std::unique_ptr<AttentionExecutor>> create(
      const AttentionServerConfig& config, const ModelSpec& spec,
      std::shared_ptr<const ModelWeights> weights, std::unique_ptr<transport::MoeClient> moe);

  Result<IterationOutput> run_iteration(const IterationInput& input,
                                        IterationProbe* probe) override;
  Result<void> skip_iteration() override;
  void abort() override;

 private:
  CpuAttentionExecutor(const AttentionServerConfig& config, const ModelSpec& spec,
                       std::shared_ptr<const ModelWeights> weights,
                       std::unique_ptr<transport::MoeClient> moe);

  void check_input(const IterationInput& input) const;
  void embed(const IterationInput& input);
  Result<void> run_layer(int layer, const IterationInput& input, IterationProbe* probe);
  void run_dense_half(int layer, const IterationInput& input);
  void run_chunk(int layer, int first_row, int row_count);
  void add_expert_results(int row);
  Result<IterationOutput> sample(const IterationInput& input, IterationProbe* probe);
  Result<void> sample_group(const IterationInput& input, std::span<const int> sequences,
                            IterationProbe* probe, IterationOutput& output);
  void compute_logits(std::span<const int> rows);
  void probe_all_logits(IterationProbe& probe);
  void probe_layer(IterationProbe& probe) const;

  // Rows whose logits are computed together.
  static constexpr int kLogitRows = 32;

  ModelSpec spec_;
  std::shared_ptr<const ModelWeights> weights_;
  std::unique_ptr<transport::MoeClient> moe_;
  MoeActivation activation_;
  apk::Phase phase_;
  int max_rows_;
  size_t dispatch_row_bytes_;
  std::atomic<bool> aborted_{false};

  AttentionLayer attention_;
  Sampler sampler_;
  int row_count_ = 0;                              // of the running iteration
  AlignedBuffer<float> residual_;                  // [max_rows, hidden]
  AlignedBuffer<std::byte> dispatch_rows_;         // [max_rows, dispatch_row_bytes]
  AlignedBuffer<int32_t> expert_ids_;              // [max_rows, top_k]
  AlignedBuffer<float> expert_weights_;            // [max_rows, top_k]
  std::vector<RowSegment> segments_;               // of a chunk
  AlignedBuffer<float> expert_sum_, row_scratch_;  // [hidden]
  AlignedBuffer<float> final_rows_;                // [kLogitRows, hidden]
  AlignedBuffer<float> logits_;                    // [kLogitRows, vocab]
};

}  // namespace expertplex::cpu
