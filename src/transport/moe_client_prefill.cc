// The prefill client: rows packed by expert in pages, one result row per (token, MoE server).
#include <algorithm>

#include "base/check.h"
#include "transport/moe_client_base.h"

namespace expertplex::transport {
namespace {

// Results of a token come from at most this many servers.
int max_rows_per_token(const MoeBufferConfig& b) { return std::min(b.top_k, b.moe_server_count); }

class PrefillClient final : public MoeClientBase {
 public:
  PrefillClient(const Config& config, std::vector<Server> servers)
      : MoeClientBase(config, std::move(servers), config.buffers.max_prefill_tokens,
                      config.buffers.max_prefill_tokens * max_rows_per_token(config.buffers)),
        next_row_(buffers().expert_count),
        offsets_(buffers().max_prefill_tokens + 1),
        tokens_on_server_(servers_.size()) {
    int entries = 0;
    for (const Server& server : servers_) {
      entries = std::max(entries, server.layout.prefill_entries());
    }
    entries_.resize(entries);
  }

  Result<void> dispatch(int layer, std::span<const std::byte> rows,
                        const Routing& routing) override {
    EXPERTPLEX_TRY(begin_dispatch(layer, rows, routing));
    std::fill_n(row_counts_.begin(), token_count_, 0);
    size_t pulled_rows = 0;  // of the servers before
    for (size_t s = 0; s < servers_.size(); ++s) {
      Server& server = servers_[s];
      place_experts(server);
      push_rows(server, rows, routing, pulled_rows);
      const int tokens = tokens_on_server_[s];
      if (tokens > 0) put_lists(server, tokens);
      publish_ready(server, layer, static_cast<uint32_t>(tokens));
      pulled_rows += static_cast<size_t>(tokens);
    }
    return {};
  }

  Result<void> combine(int layer) override {
    EXPERTPLEX_TRY(begin_combine(layer));
    size_t pulled_rows = 0;
    for (size_t s = 0; s < servers_.size(); ++s) {
      const size_t tokens = static_cast<size_t>(tokens_on_server_[s]);
      if (tokens == 0) continue;
      const size_t source =
          servers_[s].layout.prefill_combine_row(config_.microbatch, config_.member, 0);
      servers_[s].window->get(pulled_.data() + pulled_rows * pulled_stride_, source,
                              tokens * pulled_stride_);
      pulled_rows += tokens;
    }
    return {};
  }

 private:
  // next_row_[e]: the first row of the server's expert e, page-aligned.
  void place_experts(const Server& server) {
    const int first = buffers().first_expert(server.layout.server());
    const uint32_t page_rows = static_cast<uint32_t>(buffers().prefill_page_rows);
    uint32_t row = 0;
    for (int e = first; e < first + server.layout.local_experts(); ++e) {
      next_row_[e] = row;
      row += (counts_[e] + page_rows - 1) / page_rows * page_rows;
    }
    EXPERTPLEX_CHECK(row <= static_cast<uint32_t>(server.layout.prefill_rows()));
  }

  // Puts the rows of one server and builds its token lists; says where each token's result will be.
  void push_rows(Server& server, std::span<const std::byte> rows, const Routing& routing,
                 size_t pulled_rows) {
    const int first = buffers().first_expert(server.layout.server());
    const int last = first + server.layout.local_experts();
    const int top_k = buffers().top_k;
    const size_t row_bytes = buffers().dispatch_row_bytes;
    uint32_t entries = 0;
    int tokens = 0;
    for (int t = 0; t < token_count_; ++t) {
      const uint32_t before = entries;
      for (int k = 0; k < top_k; ++k) {
        const size_t pair = static_cast<size_t>(t) * top_k + k;
        const int expert = routing.expert_ids[pair];
        if (expert < first || expert >= last) continue;
        const uint32_t row = next_row_[expert]++;
        server.window->put(
            server.layout.prefill_row(config_.microbatch, config_.member, static_cast<int>(row)),
            rows.data() + static_cast<size_t>(t) * row_bytes, row_bytes);
        entries_[entries++] = {row, routing.weights[pair]};
      }
      if (entries == before) continue;
      offsets_[tokens] = before;
      row_pointers_[static_cast<size_t>(t) * top_k + row_counts_[t]++] =
          pulled_.data() + (pulled_rows + static_cast<size_t>(tokens)) * pulled_stride_;
      ++tokens;
    }
    offsets_[tokens] = entries;
    tokens_on_server_[server.layout.server()] = tokens;
  }

  void put_lists(Server& server, int tokens) {
    const int microbatch = config_.microbatch, sender = config_.member;
    server.window->put(server.layout.prefill_expert_rows(microbatch, sender),
                       counts_.data() + buffers().first_expert(server.layout.server()),
                       server.layout.local_experts() * sizeof(uint32_t));
    server.window->put(server.layout.prefill_token_offsets(microbatch, sender), offsets_.data(),
                       (static_cast<size_t>(tokens) + 1) * sizeof(uint32_t));
    server.window->put(server.layout.prefill_token_entries(microbatch, sender), entries_.data(),
                       offsets_[tokens] * sizeof(PrefillTokenEntry));
  }

  std::vector<uint32_t> next_row_;  // [expert_count]
  std::vector<uint32_t> offsets_;
  std::vector<PrefillTokenEntry> entries_;
  std::vector<int> tokens_on_server_;
};

}  // namespace

std::unique_ptr<MoeClient> make_prefill_client(const MoeClient::Config& config,
                                               std::vector<MoeClientBase::Server> servers) {
  return std::make_unique<PrefillClient>(config, std::move(servers));
}

}  // namespace expertplex::transport
