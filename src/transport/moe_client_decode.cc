// The decode client: rows go to regions shared by all participants, one result row per (token, k).
#include <algorithm>

#include "base/check.h"
#include "transport/moe_client_base.h"

namespace expertplex::transport {
namespace {

class DecodeClient final : public MoeClientBase {
 public:
  DecodeClient(const Config& config, std::vector<Server> servers)
      : MoeClientBase(config, std::move(servers), config.buffers.max_decode_rows,
                      config.buffers.max_decode_rows * config.buffers.top_k),
        pairs_(row_pointers_.size()),
        slots_(row_pointers_.size()),
        first_pair_(buffers().expert_count + 1) {
    for (size_t i = 0; i < row_pointers_.size(); ++i) {
      row_pointers_[i] = pulled_.data() + i * pulled_stride_;
    }
    std::fill(row_counts_.begin(), row_counts_.end(), buffers().top_k);
  }

  Result<void> dispatch(int layer, std::span<const std::byte> rows,
                        const Routing& routing) override {
    EXPERTPLEX_TRY(begin_dispatch(layer, rows, routing));
    sort_by_expert(routing);
    const uint32_t stamp = operation_epoch(epoch(), layer, buffers().layer_count);
    for (Server& server : servers_) {
      const int first_expert = buffers().first_expert(server.layout.server());
      uint32_t sent = 0;
      for (int e = 0; e < server.layout.local_experts(); ++e) {
        const uint32_t count = counts_[first_expert + e];
        if (count == 0) continue;
        EXPERTPLEX_TRY(push_expert(server, first_expert, e, stamp, rows));
        sent += count;
      }
      publish_ready(server, layer, sent);
    }
    return {};
  }

  Result<void> combine(int layer) override {
    EXPERTPLEX_TRY(begin_combine(layer));
    const size_t pairs = static_cast<size_t>(token_count_) * buffers().top_k;
    for (size_t i = 0; i < pairs; ++i) {
      const Server& server = servers_[server_of_pair_[i]];
      server.window->get(
          pulled_.data() + i * pulled_stride_,
          server.layout.decode_combine_row(config_.microbatch, slot_of(static_cast<uint32_t>(i))),
          buffers().combine_row_bytes);
    }
    return {};
  }

 private:
  int slot_of(uint32_t pair) const {
    return static_cast<int>(
        static_cast<uint32_t>(config_.member * buffers().max_decode_rows) * buffers().top_k + pair);
  }

  // pairs_: the (token, k) pairs ordered by expert; first_pair_[e]: where expert e's begin.
  void sort_by_expert(const Routing& routing) {
    uint32_t next = 0;
    for (int e = 0; e < buffers().expert_count; ++e) {
      first_pair_[e] = next;
      next += counts_[e];
    }
    first_pair_[buffers().expert_count] = next;
    for (uint32_t i = 0; i < next; ++i) {
      const int expert = routing.expert_ids[i];
      pairs_[first_pair_[expert]++] = i;
      server_of_pair_[i] = static_cast<uint16_t>(buffers().server_of_expert(expert));
      row_weights_[i] = routing.weights[i];
    }
    for (int e = buffers().expert_count; e > 0; --e) first_pair_[e] = first_pair_[e - 1];
    first_pair_[0] = 0;
  }

  // Reserves room in the expert's region and puts this client's rows and their slots there.
  Result<void> push_expert(Server& server, int first_expert, int local_expert, uint32_t stamp,
                           std::span<const std::byte> rows) {
    const int microbatch = config_.microbatch;
    const uint32_t count = counts_[first_expert + local_expert];
    const uint32_t base = server.window->reserve(
        server.layout.decode_counter(microbatch, local_expert), stamp, count);
    if (base == kStaleReservation) {
      return make_error(ErrorCode::kUnavailable,
                        "{}: the decode group has left iteration {} without this participant",
                        config_.name, epoch());
    }
    if (base + count > static_cast<uint32_t>(server.layout.decode_capacity())) {
      return make_error(ErrorCode::kInternal,
                        "{}: expert {} of MoE server {} has rows [{}, {}) of at most {}",
                        config_.name, local_expert, server.layout.server(), base, base + count,
                        server.layout.decode_capacity());
    }
    const uint32_t* pairs = pairs_.data() + first_pair_[first_expert + local_expert];
    const size_t row_bytes = buffers().dispatch_row_bytes;
    for (uint32_t i = 0; i < count; ++i) {
      slots_[i] = static_cast<uint32_t>(slot_of(pairs[i]));
      const size_t token = pairs[i] / static_cast<uint32_t>(buffers().top_k);
      server.window->put(
          server.layout.decode_row(microbatch, local_expert, static_cast<int>(base + i)),
          rows.data() + token * row_bytes, row_bytes);
    }
    server.window->put(server.layout.decode_slot(microbatch, local_expert, static_cast<int>(base)),
                       slots_.data(), count * sizeof(uint32_t));
    return {};
  }

  std::vector<uint32_t> pairs_, slots_, first_pair_;
  std::vector<uint16_t> server_of_pair_ = std::vector<uint16_t>(row_pointers_.size());
};

}  // namespace

std::unique_ptr<MoeClient> make_decode_client(const MoeClient::Config& config,
                                              std::vector<MoeClientBase::Server> servers) {
  return std::make_unique<DecodeClient>(config, std::move(servers));
}

}  // namespace expertplex::transport
