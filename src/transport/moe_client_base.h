// What the decode and the prefill client share: windows, epochs, waits and their errors.
// Private to src/transport.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/moe_client.h"

namespace expertplex::transport {

class MoeClientBase : public MoeClient {
 public:
  struct Server {
    std::shared_ptr<Window> window;
    MoeBufferLayout layout;
    std::string done_word_name;
  };

  Result<void> begin_iteration() override;
  Result<void> set_participants(uint32_t mask) override;
  Result<void> skip_iteration() override;
  void abort() override;
  CombinedToken combined(int token) const override;

 protected:
  MoeClientBase(const Config& config, std::vector<Server> servers, int max_tokens,
                int max_pulled_rows);

  bool leads() const { return config_.phase == MoePhase::kPrefill || config_.member == 0; }
  int channel() const { return channel_; }
  uint32_t epoch() const { return epoch_; }
  const MoeBufferConfig& buffers() const { return config_.buffers; }

  // Checks the order of layers and the routing; counts rows per expert into counts_.
  Result<void> begin_dispatch(int layer, std::span<const std::byte> rows, const Routing& routing);
  void publish_ready(Server& server, int layer, uint32_t count);
  // Waits for {epoch, >= layers} in every server's done word.
  Result<void> wait_done(int layers);
  // Waits for the results of `layer`; after it the next layer may be dispatched.
  Result<void> begin_combine(int layer);

  Config config_;
  std::vector<Server> servers_;
  int token_count_ = 0;           // of the last dispatch
  std::vector<uint32_t> counts_;  // [expert_count] rows of this dispatch
  // Results of the last combine: pulled rows, and per token where they are.
  size_t pulled_stride_ = 0;
  std::vector<std::byte> pulled_;
  std::vector<const std::byte*> row_pointers_;  // [token][top_k]
  std::vector<float> row_weights_;              // [token][top_k]
  std::vector<int32_t> row_counts_;             // [token]

 private:
  void adopt_epoch();
  Result<void> await_iteration();
  // What the group's members have published of `layer` at a server that is not done: for the error.
  std::string describe_missing(const Server& server, int layer) const;
  WaitSpec wait_spec(std::string_view word, WordValue expected, Nanoseconds limit) const;

  int channel_ = 0;
  uint32_t epoch_ = 0;
  uint32_t mask_ = 0, next_mask_ = 0;
  int next_layer_ = 0;      // to dispatch
  bool combining_ = false;  // dispatched, not combined
  bool skipped_ = false;    // the running iteration
  std::atomic<uint32_t> abort_{0};
};

std::unique_ptr<MoeClient> make_decode_client(const MoeClient::Config& config,
                                              std::vector<MoeClientBase::Server> servers);
std::unique_ptr<MoeClient> make_prefill_client(const MoeClient::Config& config,
                                               std::vector<MoeClientBase::Server> servers);

}  // namespace expertplex::transport
