// A claim word: {epoch:32, 2^16 + remaining:32}. It hands out `remaining` tiles of one operation,
// each exactly once, by one fetch_sub: no compare-and-swap loop, so that a hundred clusters that
// start together are served in one round.
//
// A word with remaining > 0 is *open*, and it is opened only when everything that its tiles depend
// on has been committed: who gets a tile may run it at once. Opening stores with release what the
// opener has acquired; the fetch_sub acquires. All later fetch_subs belong to the same release
// sequence, so every claimer sees it all.
//
// A claimer looks first and subtracts only from an open word; or it subtracts unseen, because its
// last ticket left many tiles, and after one subtraction in vain looks again. So at most one
// subtraction per claimer falls below zero, whatever it did; the offset of 2^16 keeps those out of
// the epoch (REQUIRES: fewer than 2^16 claimers). A claimer that was delayed until the slot carries
// a newer operation gets a tile of that one, by the same rules: the word that it subtracted from
// says which.
#pragma once

#include <cstdint>

#include "apk/memory.h"
#include "base/host_device.h"

namespace expertplex::apk {

constexpr uint32_t kClaimOffset = 1u << 16;
constexpr uint32_t kMaxClaimTiles = UINT32_MAX - kClaimOffset;

EXPERTPLEX_HOST_DEVICE constexpr uint64_t pack_claim_word(uint32_t epoch, uint32_t remaining) {
  return uint64_t{epoch} << 32 | (kClaimOffset + remaining);
}

EXPERTPLEX_HOST_DEVICE constexpr uint32_t claim_epoch(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}

EXPERTPLEX_HOST_DEVICE constexpr uint32_t claim_remaining(uint64_t word) {
  const uint32_t low = static_cast<uint32_t>(word);
  return low > kClaimOffset ? low - kClaimOffset : 0;
}

// What a successful claim got: the tile is the `remaining`-th from the end of its word. From here
// to its commit the operation cannot finish, so its fields may be read.
struct ClaimTicket {
  uint32_t epoch = 0;
  uint32_t remaining = 0;  // 0: nothing was claimed
};

// Without a look. REQUIRES: the claimer's last subtraction from this word got a tile.
template <typename Mem>
EXPERTPLEX_HOST_DEVICE ClaimTicket claim_unseen(uint64_t* word) {
  const uint64_t before = Mem::fetch_sub(word, uint64_t{1}, Acquire{}, DeviceScope{});
  return {claim_epoch(before), claim_remaining(before)};
}

// `seen` is the word's value as just loaded (relaxed).
template <typename Mem>
EXPERTPLEX_HOST_DEVICE ClaimTicket try_claim_seen(uint64_t* word, uint64_t seen) {
  return claim_remaining(seen) > 0 ? claim_unseen<Mem>(word) : ClaimTicket{};
}

template <typename Mem>
EXPERTPLEX_HOST_DEVICE ClaimTicket try_claim(uint64_t* word) {
  return try_claim_seen<Mem>(word, Mem::load(word, Relaxed{}, DeviceScope{}));
}

}  // namespace expertplex::apk
