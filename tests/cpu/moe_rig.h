// What the MoE server's tests stand on: random models, a rig of MoE servers and clients in one
// process, random operations, and the slow obvious twin of the MoE module in double.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/vector_ops.h"
#include "cpu/moe/moe_server.h"
#include "cpu/moe/row_format.h"
#include "transport/in_process_fabric.h"
#include "transport/moe_client.h"

namespace expertplex::cpu {

struct MoeDimensions {
  int layers = 2, hidden = 64, intermediate = 96, experts = 6, top_k = 2;
  DataType weights = DataType::kF32;
  MoeActivation activation = MoeActivation::kNative;
  int moe_servers = 2, clusters = 2;
  int decode_participants = 2, max_decode_rows = 24;
  int prefill_senders = 2, max_prefill_tokens = 90, page_rows = 16, microbatches = 1;
  bool preemption = true;
};

// Random expert weights of any stored type, and the values they stand for.
class RandomMoeModel {
 public:
  RandomMoeModel(const MoeDimensions& d, uint64_t seed)
      : weights_(std::make_shared<ModelWeights>()) {
    Random random(seed);
    spec_.layer_count = d.layers;
    spec_.hidden_size = d.hidden;
    spec_.expert_count = d.experts;
    spec_.experts_per_token = d.top_k;
    spec_.expert_intermediate_size = d.intermediate;
    spec_.fp8_weights = d.weights == DataType::kFp8E4m3;
    weights_->layers.resize(d.layers);
    for (LayerWeights& layer : weights_->layers) {
      layer.experts.resize(d.experts);
      for (ExpertWeights& expert : layer.experts) {
        expert.gate = matrix(random, d.weights, d.intermediate, d.hidden);
        expert.up = matrix(random, d.weights, d.intermediate, d.hidden);
        expert.down = matrix(random, d.weights, d.hidden, d.intermediate);
      }
    }
  }

  const ModelSpec& spec() const { return spec_; }
  std::shared_ptr<const ModelWeights> weights() const { return weights_; }

  // y = down(silu(gate(x)) * up(x)) in double; FP8 mode requantises between the products.
  std::vector<double> expert(const std::vector<float>& x, int layer, int expert,
                             MoeActivation activation) const {
    const ExpertWeights& w = weights_->layers[layer].experts[expert];
    const std::vector<double> input(x.begin(), x.end());
    const auto gate = product(w.gate, input), up = product(w.up, input);
    std::vector<float> middle(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      middle[i] = static_cast<float>(gate[i] / (1 + std::exp(-gate[i])) * up[i]);
    }
    if (activation == MoeActivation::kFp8) middle = through_fp8(middle);
    return product(w.down, {middle.begin(), middle.end()});
  }

  // What a row is after quantisation and back.
  static std::vector<float> through_fp8(const std::vector<float>& x) {
    const int n = static_cast<int>(x.size());
    std::vector<Fp8E4m3> values(x.size());
    std::vector<float> scales(x.size() / 128), y(x.size());
    quantize_row(x.data(), n, values.data(), scales.data());
    for (size_t i = 0; i < x.size(); ++i) y[i] = to_float(values[i]) * scales[i / 128];
    return y;
  }

 private:
  LinearWeight matrix(Random& random, DataType type, int out, int in) {
    LinearWeight w{type, out, in, nullptr, nullptr};
    const size_t count = static_cast<size_t>(out) * in;
    auto& bytes = storage_.emplace_back(
        std::make_unique<std::vector<std::byte>>(count * data_type_bytes(type)));
    const float spread = 2.0f / std::sqrt(static_cast<float>(in));
    for (size_t i = 0; i < count; ++i) {
      const float x = static_cast<float>(random.unit() * 2 - 1) * spread;
      if (type == DataType::kF32) reinterpret_cast<float*>(bytes->data())[i] = x;
      if (type == DataType::kBf16) reinterpret_cast<Bf16*>(bytes->data())[i] = to_bf16(x);
      if (type == DataType::kFp8E4m3) {
        reinterpret_cast<Fp8E4m3*>(bytes->data())[i] = to_fp8_e4m3(x * 64);
      }
    }
    w.data = bytes->data();
    if (type == DataType::kFp8E4m3) {
      auto& scales = scales_.emplace_back(std::make_unique<std::vector<float>>(
          static_cast<size_t>((out + 127) / 128) * ((in + 127) / 128)));
      for (float& s : *scales) s = static_cast<float>(0.5 + random.unit()) / 64;
      w.scales = scales->data();
    }
    return w;
  }

  static double value(const LinearWeight& w, int row, int column) {
    const size_t i = static_cast<size_t>(row) * w.in_features + column;
    switch (w.type) {
      case DataType::kF32:
        return static_cast<const float*>(w.data)[i];
      case DataType::kBf16:
        return to_float(static_cast<const Bf16*>(w.data)[i]);
      default:
        break;
    }
    return static_cast<double>(to_float(static_cast<const Fp8E4m3*>(w.data)[i])) *
           w.scales[static_cast<size_t>(row / 128) * ((w.in_features + 127) / 128) + column / 128];
  }

  static std::vector<double> product(const LinearWeight& w, const std::vector<double>& x) {
    std::vector<double> y(w.out_features, 0.0);
    for (int r = 0; r < w.out_features; ++r) {
      for (int c = 0; c < w.in_features; ++c) y[r] += value(w, r, c) * x[c];
    }
    return y;
  }

  ModelSpec spec_;
  std::shared_ptr<ModelWeights> weights_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage_;
  std::vector<std::unique_ptr<std::vector<float>>> scales_;
};

// One operation's input.
struct MoeRows {
  std::vector<std::vector<float>> x;  // as the servers will see them, unpacked
  std::vector<std::byte> encoded;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int tokens() const { return static_cast<int>(x.size()); }
};

inline MoeRows draw_moe_rows(Random& random, const MoeDimensions& d, int tokens) {
  MoeRows rows;
  const size_t row_bytes = dispatch_row_bytes(d.hidden, d.activation);
  rows.encoded.resize(tokens * row_bytes);
  // All rows on the same experts, on few, or on any.
  const int in_use =
      random.chance(0.2) ? d.top_k : static_cast<int>(random.between(d.top_k, d.experts));
  const int first = static_cast<int>(random.below(d.experts - in_use + 1));
  for (int t = 0; t < tokens; ++t) {
    std::vector<float> x(d.hidden);
    for (float& v : x) v = static_cast<float>(random.unit() * 2 - 1);
    encode_dispatch_row(x.data(), d.hidden, d.activation, rows.encoded.data() + t * row_bytes);
    rows.x.push_back(d.activation == MoeActivation::kFp8 ? RandomMoeModel::through_fp8(x) : x);
    int needed = d.top_k;
    for (int e = first; needed > 0; ++e) {
      if (static_cast<int>(random.below(first + in_use - e)) >= needed) continue;
      rows.ids.push_back(e);
      rows.weights.push_back(static_cast<float>(random.unit()));
      --needed;
    }
  }
  return rows;
}

// The servers of one model in one process.
class MoeRig {
 public:
  MoeRig(const MoeDimensions& d, const RandomMoeModel& model) : d_(d), model_(model) {
    buffers_.layer_count = d.layers;
    buffers_.expert_count = d.experts;
    buffers_.moe_server_count = d.moe_servers;
    buffers_.top_k = d.top_k;
    buffers_.dispatch_row_bytes = dispatch_row_bytes(d.hidden, d.activation);
    buffers_.combine_row_bytes = combine_row_bytes(d.hidden, d.activation);
    buffers_.decode_participants = d.decode_participants;
    buffers_.max_decode_rows = d.max_decode_rows;
    buffers_.microbatches = d.microbatches;
    buffers_.prefill_senders = d.prefill_senders;
    buffers_.max_prefill_tokens = d.max_prefill_tokens;
    buffers_.prefill_page_rows = d.page_rows;
  }

  MoeServerConfig server_config(int index) const {
    MoeServerConfig c;
    c.index = index;
    c.window_name = "moe" + std::to_string(index);
    c.buffers = buffers_;
    c.cluster_count = d_.clusters;
    c.activation = d_.activation;
    c.sharing.preemption = d_.preemption;
    c.wait_limit = wait_limit;
    return c;
  }

  // Empty, or why not.
  std::string start() {
    for (int s = 0; s < d_.moe_servers; ++s) {
      auto server =
          CpuMoeExecutor::create(fabric_, server_config(s), model_.spec(), model_.weights());
      if (!server) return server.error().message;
      servers.push_back(std::move(*server));
      if (auto started = servers.back()->start(); !started) return started.error().message;
    }
    return "";
  }
  std::string stop() {
    for (auto& server : servers) {
      if (auto stopped = server->stop(30 * kSecond); !stopped) return stopped.error().message;
    }
    return "";
  }

  std::unique_ptr<transport::MoeClient> connect(transport::MoePhase phase, int member,
                                                int microbatch = 0) {
    transport::MoeClient::Config c;
    c.phase = phase;
    c.member = member;
    c.microbatch = microbatch;
    c.name = "client " + std::to_string(member);
    for (int s = 0; s < d_.moe_servers; ++s) c.moe_windows.push_back("moe" + std::to_string(s));
    c.buffers = buffers_;
    c.wait_limit = wait_limit;
    auto client = transport::MoeClient::connect(fabric_, c);
    EXPERTPLEX_CHECK(client.ok(), "{}", client.error().message);
    return std::move(*client);
  }

  const MoeDimensions& dimensions() const { return d_; }
  const RandomMoeModel& model() const { return model_; }
  const transport::MoeBufferConfig& buffers() const { return buffers_; }
  transport::Fabric& fabric() { return fabric_; }

  std::vector<std::unique_ptr<CpuMoeExecutor>> servers;
  Nanoseconds wait_limit = 60 * kSecond;

 private:
  MoeDimensions d_;
  const RandomMoeModel& model_;
  transport::MoeBufferConfig buffers_;
  transport::InProcessFabric fabric_;
};

// The MoE output of one token, added up as an attention server does.
inline std::vector<float> combined_output(const transport::MoeClient& client,
                                          const MoeDimensions& d, int token) {
  const transport::CombinedToken rows = client.combined(token);
  std::vector<float> sum(d.hidden, 0.0f), scratch(d.hidden);
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const float* y = decode_combine_row(rows.rows[i], d.hidden, d.activation, scratch.data());
    add_scaled(rows.weights[i], y, d.hidden, sum.data());
  }
  return sum;
}

// ||y - expected|| / ||expected|| of a token.
inline double relative_error(const MoeRig& rig, const MoeRows& rows, int layer, int t,
                             const std::vector<float>& y) {
  const MoeDimensions& d = rig.dimensions();
  std::vector<double> expected(d.hidden, 0.0);
  for (int k = 0; k < d.top_k; ++k) {
    const size_t pair = static_cast<size_t>(t) * d.top_k + k;
    const auto row = rig.model().expert(rows.x[t], layer, rows.ids[pair], d.activation);
    for (int c = 0; c < d.hidden; ++c) expected[c] += rows.weights[pair] * row[c];
  }
  double difference = 0, norm = 0;
  for (int c = 0; c < d.hidden; ++c) {
    difference += (y[c] - expected[c]) * (y[c] - expected[c]);
    norm += expected[c] * expected[c];
  }
  return std::sqrt(difference / (norm + 1e-30));
}

struct MoeRun {
  std::string complaint;       // empty: fine
  std::vector<float> outputs;  // of all tokens, in order
};

// `iterations` iterations of random operations. With `error_limit` > 0 every token is compared with
// the reference. Row counts are drawn up to `most`.
inline MoeRun run_moe(MoeRig& rig, transport::MoeClient& client, uint64_t seed, int iterations,
                      int most, double error_limit = 0, double skip_chance = 0.1) {
  const MoeDimensions& d = rig.dimensions();
  Random random(seed);
  MoeRun run;
  const auto failed = [&](const Result<void>& result) {
    if (!result) run.complaint = result.error().message;
    return !result.ok();
  };
  for (int i = 0; i < iterations; ++i) {
    if (failed(client.begin_iteration())) return run;
    if (random.chance(skip_chance)) {
      if (failed(client.skip_iteration())) return run;
      continue;
    }
    const int tokens = static_cast<int>(random.chance(0.1) ? most : random.between(0, most));
    for (int layer = 0; layer < d.layers; ++layer) {
      const MoeRows rows = draw_moe_rows(random, d, tokens);
      if (failed(client.dispatch(layer, rows.encoded, {tokens, d.top_k, rows.ids, rows.weights}))) {
        return run;
      }
      if (failed(client.combine(layer))) return run;
      for (int t = 0; t < tokens; ++t) {
        const std::vector<float> y = combined_output(client, d, t);
        run.outputs.insert(run.outputs.end(), y.begin(), y.end());
        if (error_limit <= 0) continue;
        const double error = relative_error(rig, rows, layer, t, y);
        if (error <= error_limit) continue;
        run.complaint = "iteration " + std::to_string(i) + ", layer " + std::to_string(layer) +
                        ", token " + std::to_string(t) + ": error " + std::to_string(error);
        return run;
      }
    }
  }
  return run;
}

}  // namespace expertplex::cpu
