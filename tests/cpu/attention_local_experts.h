// LocalExperts: a MoeClient without MoE servers: it computes the experts itself, one row and one
// expert at a time, in the order that the contract states. The obvious twin of the whole MoE side,
// and what attention tests run against.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/vector_ops.h"
#include "cpu/moe/row_format.h"
#include "model/weights.h"
#include "transport/moe_client.h"

namespace expertplex::cpu::testing {

class LocalExperts final : public transport::MoeClient {
 public:
  LocalExperts(const ModelSpec& spec, std::shared_ptr<const ModelWeights> weights)
      : spec_(spec), weights_(std::move(weights)) {}

  Result<void> begin_iteration() override {
    next_layer_ = 0;
    return {};
  }
  Result<void> set_participants(uint32_t) override { return {}; }
  Result<void> dispatch(int layer, std::span<const std::byte> rows,
                        const transport::Routing& routing) override {
    EXPERTPLEX_CHECK(layer == next_layer_++);
    const size_t hidden = static_cast<size_t>(spec_.hidden_size);
    const size_t top_k = static_cast<size_t>(routing.top_k);
    results_.assign(routing.expert_ids.size() * hidden, 0.0f);
    weights_of_rows_.assign(routing.weights.begin(), routing.weights.end());
    rows_.clear();
    top_k_ = top_k;
    const size_t row_bytes = rows.size() / static_cast<size_t>(routing.token_count);
    std::vector<float> x(hidden);
    for (size_t i = 0; i < routing.expert_ids.size(); ++i) {
      if (i % top_k > 0) EXPERTPLEX_CHECK(routing.expert_ids[i] > routing.expert_ids[i - 1]);
      std::memcpy(x.data(), rows.data() + i / top_k * row_bytes, hidden * sizeof(float));
      run_expert(weights_->layers[layer].experts[routing.expert_ids[i]], x, &results_[i * hidden]);
      rows_.push_back(reinterpret_cast<const std::byte*>(&results_[i * hidden]));
    }
    return {};
  }
  Result<void> combine(int) override { return {}; }
  transport::CombinedToken combined(int token) const override {
    const size_t first = static_cast<size_t>(token) * top_k_;
    return {{&rows_[first], top_k_}, {&weights_of_rows_[first], top_k_}};
  }
  Result<void> skip_iteration() override { return {}; }
  void abort() override {}

 private:
  void run_expert(const ExpertWeights& expert, const std::vector<float>& x, float* y) const {
    std::vector<float> gate(expert.gate.out_features), up(expert.up.out_features);
    const LinearInput input{.data = x.data(), .row_stride = spec_.hidden_size};
    linear(input, 1, expert.gate, 0, expert.gate.out_features, gate.data(), 0);
    linear(input, 1, expert.up, 0, expert.up.out_features, up.data(), 0);
    silu_multiply(gate.data(), up.data(), static_cast<int>(gate.size()), gate.data());
    linear({.data = gate.data(), .row_stride = expert.down.in_features}, 1, expert.down, 0,
           expert.down.out_features, y, 0);
  }

  ModelSpec spec_;
  std::shared_ptr<const ModelWeights> weights_;
  int next_layer_ = 0;
  size_t top_k_ = 1;
  std::vector<float> results_, weights_of_rows_;
  std::vector<const std::byte*> rows_;
};

}  // namespace expertplex::cpu::testing
