#include "transport/kv_handoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "fabrics.h"

namespace expertplex::transport {
namespace {

struct Server {
  KvWindowLayout layout;
  std::shared_ptr<Window> window;
};

Server make_server(Fabric& fabric, const std::string& name, int pages, int slots, int peers) {
  Server server;
  server.layout = {.layer_count = 3,
                   .page_count = pages,
                   .page_bytes = 96,
                   .slot_count = slots,
                   .peer_count = peers};
  server.window = *fabric.create_window(name, server.layout.total_bytes(), 1);
  return server;
}

class KvHandoff : public ::testing::Test {
 protected:
  std::unique_ptr<Fabric> fabric_ = SharedMemory::make();
  // Prefill server 1 of 2 hands off to decode server 2 of 3.
  Server prefill_ = make_server(*fabric_, "prefill", 20, 2, 3);
  Server decode_ = make_server(*fabric_, "decode", 40, 5, 2);
  KvSender sender_{prefill_.window,
                   prefill_.layout,
                   2,
                   *fabric_->open_window("decode", kSecond),
                   decode_.layout,
                   1};
  KvReceiver receiver_{decode_.window,
                       decode_.layout,
                       1,
                       *fabric_->open_window("prefill", kSecond),
                       prefill_.layout,
                       2};
};

TEST_F(KvHandoff, PagesArriveWhereTheyWereReserved) {
  Random random(1);
  std::byte* own = prefill_.window->local_data();
  for (int layer = 0; layer < 3; ++layer) {
    for (uint32_t page = 0; page < 20; ++page) {
      for (int i = 0; i < 96; ++i) {
        own[prefill_.layout.page_offset(layer, page) + i] = std::byte(random.next());
      }
    }
  }
  // Runs of neighbours and jumps.
  const std::vector<uint32_t> source = {4, 5, 6, 0, 19, 7, 8};
  const std::vector<uint32_t> destination = {10, 11, 12, 39, 0, 3, 5};
  EXPECT_FALSE(receiver_.arrived(1, 9));
  for (int layer = 0; layer < 3; ++layer) sender_.put_pages(layer, source, destination);
  EXPECT_FALSE(receiver_.arrived(1, 9));
  sender_.publish(1, 9, 100);
  ASSERT_TRUE(receiver_.arrived(1, 9));
  EXPECT_EQ(*receiver_.arrived(1, 9), 100u);
  EXPECT_FALSE(receiver_.arrived(1, 8));
  EXPECT_FALSE(receiver_.arrived(0, 9));
  const std::byte* there = decode_.window->local_data();
  for (int layer = 0; layer < 3; ++layer) {
    for (size_t i = 0; i < source.size(); ++i) {
      EXPECT_EQ(std::memcmp(own + prefill_.layout.page_offset(layer, source[i]),
                            there + decode_.layout.page_offset(layer, destination[i]), 96),
                0);
    }
  }
  EXPECT_FALSE(sender_.acknowledged(1, 9));
  receiver_.acknowledge(1, 9, false);
  EXPECT_TRUE(sender_.acknowledged(1, 9));
  EXPECT_FALSE(sender_.acknowledged(1, 10));
}

TEST_F(KvHandoff, CancelFromEitherSideIsAcknowledged) {
  sender_.cancel(0, 3);
  EXPECT_TRUE(receiver_.cancelled(0, 3));
  EXPECT_FALSE(receiver_.arrived(0, 3));
  receiver_.acknowledge(0, 3, true);
  EXPECT_TRUE(sender_.acknowledged(0, 3));
  sender_.publish(0, 4, 0);  // zero tokens differ from not arrived
  EXPECT_EQ(receiver_.arrived(0, 4), std::optional<uint32_t>(0));
  EXPECT_FALSE(receiver_.cancelled(0, 4));
}

TEST_F(KvHandoff, LayoutKeepsWordsAndPagesApart) {
  const KvWindowLayout& layout = decode_.layout;
  std::vector<size_t> words;
  for (int peer = 0; peer < layout.peer_count; ++peer) {
    for (int slot = 0; slot < layout.slot_count; ++slot) {
      words.push_back(layout.handoff_word_offset(peer, slot));
      words.push_back(layout.acknowledge_word_offset(peer, slot));
    }
  }
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end());
  EXPECT_LE(words.back() + 8, layout.page_offset(0, 0));
  EXPECT_EQ(layout.page_offset(2, 39) + 96, layout.total_bytes());
  EXPECT_EQ(layout.page_offset(0, 0) % 4096, 0u);
  EXPECT_DEATH(layout.page_offset(0, 40), "page 40 of 40");
  EXPECT_DEATH(layout.handoff_word_offset(2, 0), "peer 2 of 2");
}

}  // namespace
}  // namespace expertplex::transport
