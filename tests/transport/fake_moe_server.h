// A slow obvious MoE server for transport tests. Rows are uint32 words; expert e (of the model)
// makes of word w at position i in layer l:  w * (e + 1) + 7 * l + i. Prefill results are weighted
// (weights are small integers) and added modulo 2^32. It checks what arrives and counts faults.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/moe_buffers.h"
#include "transport/window.h"

namespace expertplex::transport {

inline uint32_t fake_expert(uint32_t word, int expert, int layer, size_t position) {
  return word * static_cast<uint32_t>(expert + 1) + 7 * static_cast<uint32_t>(layer) +
         static_cast<uint32_t>(position);
}

class FakeMoeServer {
 public:
  FakeMoeServer(Fabric& fabric, const MoeBufferConfig& config, int server, const std::string& name)
      : layout_(*MoeBufferLayout::plan(config, server)),
        window_(*fabric.create_window(name, layout_.total_bytes(), kMoeBells)),
        cursors_(config.channel_count()) {}
  ~FakeMoeServer() { stop(); }

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    stop_ = true;
    window_->ring(kMoeReadyBell);
    if (thread_.joinable()) thread_.join();
  }
  // Serves until stop(); for a process that has nothing else to do.
  void run() {
    while (!stop_) {
      const uint32_t ticket = window_->bell_ticket(kMoeReadyBell);
      bool worked = false;
      for (int c = 0; c < layout_.config().channel_count(); ++c) worked |= serve(c);
      if (!worked && !stop_) window_->park(kMoeReadyBell, ticket, kSecond);
    }
  }
  int faults() const { return faults_; }
  int operations() const { return operations_; }
  Window& window() { return *window_; }

 private:
  struct Cursor {
    uint32_t epoch = 0;
    int next_layer = 0;
  };

  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(window_->local_data() + offset);
  }

  bool serve(int channel) {
    Cursor& cursor = cursors_[channel];
    const MoeBufferConfig& c = layout_.config();
    const WordValue iteration = unpack(window_->load(layout_.iteration_word(channel)));
    if (iteration.value == 0) return false;
    if (iteration.epoch != cursor.epoch) cursor = {iteration.epoch, 0};
    if (cursor.next_layer == c.layer_count) return false;
    uint32_t count = 0;
    for (int p = 0; p < kMaxDecodeParticipants; ++p) {
      if ((iteration.value >> p & 1) == 0) continue;
      const WordValue ready =
          unpack(window_->load(layout_.ready_word(channel, cursor.next_layer, p)));
      if (ready.epoch != cursor.epoch || ready.value == 0) return false;
      count += ready.value - 1;
    }
    const int microbatch = channel / c.group_count(), group = channel % c.group_count();
    if (group == 0) {
      decode(microbatch, cursor, count);
    } else {
      prefill(microbatch, group - 1, cursor.next_layer, count);
    }
    ++operations_;
    ++cursor.next_layer;
    window_->signal(layout_.done_word(channel),
                    pack({cursor.epoch, static_cast<uint32_t>(cursor.next_layer)}), kMoeDoneBell);
    return true;
  }

  void decode(int microbatch, const Cursor& cursor, uint32_t count) {
    const int layer = cursor.next_layer;
    const uint32_t stamp = operation_epoch(cursor.epoch, layer, layout_.config().layer_count);
    uint32_t sum = 0;
    for (int e = 0; e < layout_.local_experts(); ++e) {
      const WordValue rows = unpack(window_->load(layout_.decode_counter(microbatch, e)));
      if (rows.epoch != stamp) continue;
      for (uint32_t r = 0; r < rows.value; ++r) {
        const uint32_t slot = *at<uint32_t>(layout_.decode_slot(microbatch, e, r));
        compute(e, layer, at<uint32_t>(layout_.decode_row(microbatch, e, r)),
                at<uint32_t>(layout_.decode_combine_row(microbatch, slot)), 1, false);
      }
      sum += rows.value;
    }
    if (sum != count) ++faults_;
  }

  void prefill(int microbatch, int sender, int layer, uint32_t tokens) {
    if (tokens == 0) return;  // no lists were sent
    const auto* rows = at<uint32_t>(layout_.prefill_expert_rows(microbatch, sender));
    const auto* offsets = at<uint32_t>(layout_.prefill_token_offsets(microbatch, sender));
    const auto* entries = at<PrefillTokenEntry>(layout_.prefill_token_entries(microbatch, sender));
    // Which expert a row belongs to, from the pages.
    std::vector<int> expert_of_row;
    uint32_t sum = 0;
    for (int e = 0; e < layout_.local_experts(); ++e) {
      for (uint32_t r = 0; r < rows[e]; ++r) expert_of_row.push_back(e);
      while (expert_of_row.size() % layout_.config().prefill_page_rows != 0) {
        expert_of_row.push_back(-1);
      }
      sum += rows[e];
    }
    if (offsets[tokens] != sum) ++faults_;
    for (uint32_t t = 0; t < tokens; ++t) {
      auto* out = at<uint32_t>(layout_.prefill_combine_row(microbatch, sender, t));
      for (uint32_t i = offsets[t]; i < offsets[t + 1]; ++i) {
        const int expert = expert_of_row.at(entries[i].row);
        if (expert < 0) ++faults_;
        compute(expert, layer,
                at<uint32_t>(layout_.prefill_row(microbatch, sender, entries[i].row)), out,
                static_cast<uint32_t>(entries[i].weight), i > offsets[t]);
      }
    }
  }

  void compute(int local_expert, int layer, const uint32_t* in, uint32_t* out, uint32_t weight,
               bool add) {
    const int expert = layout_.config().first_expert(layout_.server()) + local_expert;
    for (size_t i = 0; i < layout_.config().combine_row_bytes / 4; ++i) {
      const uint32_t value = weight * fake_expert(in[i], expert, layer, i);
      out[i] = add ? out[i] + value : value;
    }
  }

  MoeBufferLayout layout_;
  std::shared_ptr<Window> window_;
  std::vector<Cursor> cursors_;
  std::atomic<bool> stop_{false};
  std::atomic<int> faults_{0}, operations_{0};
  std::thread thread_;
};

}  // namespace expertplex::transport
