// KV handoff: a prefill attention server puts each layer's KV pages into the decode attention
// server's cache as the layer finishes, then publishes one handoff word; the decode server
// acknowledges with another, after which the prefill server may reuse its pages (DESIGN section 2,
// "KV handoff"). Pages are bytes here. A slot carries one request's handoff at a time; each use has
// a new epoch.
//
// Thread rules: one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/window.h"

namespace expertplex::transport {

// The window of an attention server: handoff words, acknowledgement words, then the KV cache,
// layer by layer: [layer][page], from page_offset(0, 0) on.
struct KvWindowLayout {
  int layer_count = 0;
  int page_count = 0;
  size_t page_bytes = 0;  // of one layer: keys and values of one page of tokens
  int slot_count = 0;     // handoffs that may be open at once
  int peer_count = 1;  // attention servers that may hand off to this one, or be acknowledged by it

  size_t total_bytes() const;
  size_t page_offset(int layer, uint32_t page) const;
  // handoff_word: writer the prefill server, reader this decode server; {epoch, tokens + 1}, or
  // {epoch, kHandoffCancelled}; release: all pages put before are visible, and no put follows.
  size_t handoff_word_offset(int peer, int slot) const;
  // acknowledge_word: writer the decode server, reader this prefill server; {epoch, 1 = taken,
  // 2 = cancelled}.
  size_t acknowledge_word_offset(int peer, int slot) const;
};

constexpr int kKvBell = 0;  // rung by every handoff and acknowledgement
constexpr uint32_t kHandoffCancelled = UINT32_MAX;

// Prefill side.
class KvSender {
 public:
  // `own` is this prefill server's window, `decode` the receiver's; `peer` is this server's index
  // among the receiver's peers, `own_peer` the receiver's index among ours.
  KvSender(std::shared_ptr<Window> own, KvWindowLayout own_layout, int own_peer,
           std::shared_ptr<Window> decode, KvWindowLayout decode_layout, int peer);

  // Puts pages source[i] of `layer` to pages destination[i] there.
  void put_pages(int layer, std::span<const uint32_t> source,
                 std::span<const uint32_t> destination);
  void publish(int slot, uint32_t epoch, uint32_t token_count);
  // Instead of publish: nothing more will be put. The receiver acknowledges it like a handoff.
  void cancel(int slot, uint32_t epoch);
  // Whether the receiver has acknowledged this epoch of the slot.
  bool acknowledged(int slot, uint32_t epoch) const;

 private:
  std::shared_ptr<Window> own_, decode_;
  KvWindowLayout own_layout_, decode_layout_;
  int own_peer_, peer_;
};

// Decode side.
class KvReceiver {
 public:
  KvReceiver(std::shared_ptr<Window> own, KvWindowLayout own_layout, int peer,
             std::shared_ptr<Window> prefill, KvWindowLayout prefill_layout, int prefill_peer);

  // The token count of this epoch's handoff, once it has arrived; none while it is under way or if
  // the sender has cancelled it.
  std::optional<uint32_t> arrived(int slot, uint32_t epoch) const;
  bool cancelled(int slot, uint32_t epoch) const;
  // After it the sender may reuse its pages.
  void acknowledge(int slot, uint32_t epoch, bool cancelled);

 private:
  std::shared_ptr<Window> own_, prefill_;
  KvWindowLayout own_layout_, prefill_layout_;
  int peer_, prefill_peer_;
};

}  // namespace expertplex::transport
