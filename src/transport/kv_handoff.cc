#include "transport/kv_handoff.h"

#include "base/check.h"

namespace expertplex::transport {
namespace {

constexpr uint32_t kTaken = 1, kCancelled = 2;

constexpr size_t round_up(size_t x, size_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Bytes of one kind of words.
size_t words_bytes(const KvWindowLayout& layout) {
  return static_cast<size_t>(layout.peer_count) * static_cast<size_t>(layout.slot_count) * 8;
}

size_t word_index(const KvWindowLayout& layout, int peer, int slot) {
  EXPERTPLEX_CHECK(peer >= 0 && peer < layout.peer_count && slot >= 0 && slot < layout.slot_count,
                   "handoff word: peer {} of {}, slot {} of {}", peer, layout.peer_count, slot,
                   layout.slot_count);
  return static_cast<size_t>(peer) * static_cast<size_t>(layout.slot_count) +
         static_cast<size_t>(slot);
}

}  // namespace

size_t KvWindowLayout::total_bytes() const {
  return round_up(2 * words_bytes(*this), 4096) +
         static_cast<size_t>(layer_count) * static_cast<size_t>(page_count) * page_bytes;
}

size_t KvWindowLayout::page_offset(int layer, uint32_t page) const {
  EXPERTPLEX_CHECK(layer >= 0 && layer < layer_count && page < static_cast<uint32_t>(page_count),
                   "KV page: layer {} of {}, page {} of {}", layer, layer_count, page, page_count);
  return round_up(2 * words_bytes(*this), 4096) +
         (static_cast<size_t>(layer) * static_cast<size_t>(page_count) + page) * page_bytes;
}

size_t KvWindowLayout::handoff_word_offset(int peer, int slot) const {
  return 8 * word_index(*this, peer, slot);
}

size_t KvWindowLayout::acknowledge_word_offset(int peer, int slot) const {
  return words_bytes(*this) + 8 * word_index(*this, peer, slot);
}

KvSender::KvSender(std::shared_ptr<Window> own, KvWindowLayout own_layout, int own_peer,
                   std::shared_ptr<Window> decode, KvWindowLayout decode_layout, int peer)
    : own_(std::move(own)),
      decode_(std::move(decode)),
      own_layout_(own_layout),
      decode_layout_(decode_layout),
      own_peer_(own_peer),
      peer_(peer) {
  EXPERTPLEX_CHECK(own_layout.page_bytes == decode_layout.page_bytes &&
                       own_layout.layer_count == decode_layout.layer_count,
                   "KV caches differ: {} x {} bytes and {} x {} bytes", own_layout.layer_count,
                   own_layout.page_bytes, decode_layout.layer_count, decode_layout.page_bytes);
}

void KvSender::put_pages(int layer, std::span<const uint32_t> source,
                         std::span<const uint32_t> destination) {
  EXPERTPLEX_CHECK(source.size() == destination.size());
  for (size_t first = 0, end; first < source.size(); first = end) {
    // Neighbours on both sides travel in one put.
    end = first + 1;
    while (end < source.size() && source[end] == source[end - 1] + 1 &&
           destination[end] == destination[end - 1] + 1) {
      ++end;
    }
    const std::byte* pages = own_->local_data() + own_layout_.page_offset(layer, source[first]);
    own_layout_.page_offset(layer, source[end - 1]);  // checks the ends too
    decode_layout_.page_offset(layer, destination[end - 1]);
    decode_->put(decode_layout_.page_offset(layer, destination[first]), pages,
                 (end - first) * own_layout_.page_bytes);
  }
}

void KvSender::publish(int slot, uint32_t epoch, uint32_t token_count) {
  EXPERTPLEX_CHECK(token_count < kHandoffCancelled - 1);
  decode_->signal(decode_layout_.handoff_word_offset(peer_, slot), pack({epoch, token_count + 1}),
                  kKvBell);
}

void KvSender::cancel(int slot, uint32_t epoch) {
  decode_->signal(decode_layout_.handoff_word_offset(peer_, slot), pack({epoch, kHandoffCancelled}),
                  kKvBell);
}

bool KvSender::acknowledged(int slot, uint32_t epoch) const {
  const WordValue word = unpack(own_->load(own_layout_.acknowledge_word_offset(own_peer_, slot)));
  return word.epoch == epoch && word.value != 0;
}

KvReceiver::KvReceiver(std::shared_ptr<Window> own, KvWindowLayout own_layout, int peer,
                       std::shared_ptr<Window> prefill, KvWindowLayout prefill_layout,
                       int prefill_peer)
    : own_(std::move(own)),
      prefill_(std::move(prefill)),
      own_layout_(own_layout),
      prefill_layout_(prefill_layout),
      peer_(peer),
      prefill_peer_(prefill_peer) {}

std::optional<uint32_t> KvReceiver::arrived(int slot, uint32_t epoch) const {
  const WordValue word = unpack(own_->load(own_layout_.handoff_word_offset(peer_, slot)));
  if (word.epoch != epoch || word.value == 0 || word.value == kHandoffCancelled) {
    return std::nullopt;
  }
  return word.value - 1;
}

bool KvReceiver::cancelled(int slot, uint32_t epoch) const {
  return own_->load(own_layout_.handoff_word_offset(peer_, slot)) ==
         pack({epoch, kHandoffCancelled});
}

void KvReceiver::acknowledge(int slot, uint32_t epoch, bool cancelled) {
  prefill_->signal(prefill_layout_.acknowledge_word_offset(prefill_peer_, slot),
                   pack({epoch, cancelled ? kCancelled : kTaken}), kKvBell);
}

}  // namespace expertplex::transport
