// Writes, notifications, atomics, flush, probes and any-tag receives within one process.

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/connection_pair.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr uint16_t all_access = RemoteAccess::read | RemoteAccess::write | RemoteAccess::atomic;

struct Window {
  explicit Window(Pair& pair, size_t bytes)
      : memory(bytes), region(pair.context->register_memory(memory_of(memory), false, all_access)) {}
  std::vector<uint8_t> memory;
  std::shared_ptr<Region> region;
};

uint64_t number_at(const std::vector<uint8_t>& memory, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, memory.data() + offset, sizeof value);
  return value;
}

}  // namespace

TEST(a_notification_comes_after_its_bytes) {
  for (const Verbs* verbs : {soft_verbs(), poor_verbs()}) {
    Pair pair(verbs);
    Window window(pair, 2'000'000);
    uint32_t number = 0;
    for (size_t bytes : {0, 1, 200, 300, 8192, 299'999, 300'001, 1'500'000}) {
      auto data = content(bytes, ++number);
      const auto work = pair.near->write(memory_of(data), window.region->key(), 64, number);
      CHECK_EQ(pair.far->next_notification(patience), number);
      CHECK(std::equal(data.begin(), data.end(), window.memory.begin() + 64));
      pair.near->wait(work, patience);
    }
    CHECK_EQ(pair.near->stats().notifications_sent, 8u);
    CHECK_EQ(pair.far->stats().notifications_received, 8u);
    CHECK_THROWS(TimeoutError, "next_notification", pair.far->next_notification(0.01));
  }
}

TEST(notifications_keep_their_order_and_nobody_loses_any) {
  Pair pair;
  Window window(pair, 100'000);
  constexpr uint32_t count = 5000;
  auto small = content(8, 1);
  auto large = content(50'000, 2);
  std::vector<std::shared_ptr<Request>> works;
  for (uint32_t i = 0; i < count; ++i)
    works.push_back(pair.near->write(memory_of(i % 97 == 0 ? large : small), window.region->key(), 0, i));
  for (uint32_t i = 0; i < count; ++i) CHECK_EQ(pair.far->next_notification(patience), i);
  for (const auto& work : works) pair.near->wait(work, patience);
}

// A peer that takes none is not told more than it has room for; the writes wait, and go on when it takes
// some.
TEST(untaken_notifications_hold_the_writer_back) {
  Pair pair;
  Window window(pair, 8);
  constexpr uint32_t count = ProtocolSizes::waiting_notifications + 1000;
  auto data = content(8, 1);
  std::vector<std::shared_ptr<Request>> works;
  for (uint32_t i = 0; i < count; ++i)
    works.push_back(pair.near->write(memory_of(data), window.region->key(), 0, i));
  const Deadline deadline(10 * patience);
  while (pair.far->stats().waiting_notifications < ProtocolSizes::waiting_notifications) {
    CHECK(!deadline.passed());
    CHECK_THROWS(TimeoutError, "write", pair.near->wait(works.back(), 0.05));
  }
  CHECK_THROWS(TimeoutError, "write", pair.near->wait(works.back(), 0.5));
  CHECK(pair.far->stats().waiting_notifications <=
        ProtocolSizes::waiting_notifications + ProtocolSizes::slots.data);
  for (uint32_t i = 0; i < count; ++i) CHECK_EQ(pair.far->next_notification(patience), i);
  pair.near->wait(works.back(), patience);
}

TEST(write_many_is_one_operation) {
  for (const Verbs* verbs : {soft_verbs(), poor_verbs()}) {
    Pair pair(verbs);
    Window window(pair, 1'500'000);
    std::vector<std::vector<uint8_t>> data;
    std::vector<uint8_t> expected(window.memory.size());
    std::vector<Connection::Block> blocks;
    size_t offset = 0;
    for (size_t i = 0; i < 300; ++i) {
      const size_t bytes = i % 7 == 0 ? 0 : i % 50 == 0 ? 100'000 : i * 13 % 3000;
      data.push_back(content(bytes, static_cast<uint32_t>(i)));
      std::copy(data.back().begin(), data.back().end(),
                expected.begin() + static_cast<std::ptrdiff_t>(offset));
      blocks.push_back({memory_of(data.back()), window.region->key(), offset});
      offset += bytes + 5;
    }
    const auto work = pair.near->write_many(blocks, 99);
    CHECK_EQ(pair.far->next_notification(patience), 99u);
    CHECK(window.memory == expected);
    pair.near->wait(work, patience);
    CHECK_EQ(pair.near->stats().bytes_written, work->bytes());
    // No block at all is a notification alone.
    pair.near->wait(pair.near->write_many({}, 7), patience);
    CHECK_EQ(pair.far->next_notification(patience), 7u);
    pair.near->wait(pair.near->write_many({}), patience);
  }
}

TEST(a_block_that_does_not_fit_is_named_and_nothing_is_written) {
  Pair pair;
  Window window(pair, 100);
  auto data = content(60, 1);
  const RemoteKey key = window.region->key();
  CHECK_THROWS(UsageError, "block 1 of write_many",
               pair.near->write_many({{memory_of(data), key, 0}, {memory_of(data), key, 41}}));
  CHECK(window.memory == std::vector<uint8_t>(100));
}

TEST(atomics_from_both_sides_add_up) {
  Pair pair;
  Window window(pair, 64);
  const RemoteKey key = window.region->key();
  std::vector<std::thread> threads;
  for (const auto& end : {pair.near, pair.far, pair.near}) {
    threads.emplace_back([&, end] {
      for (int i = 0; i < 500; ++i) end->wait(end->fetch_add(key, 8, 3), patience);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(number_at(window.memory, 8), 4500u);
  auto work = pair.near->fetch_add(key, 8, UINT64_MAX);
  pair.near->wait(work, patience);
  CHECK_EQ(work->value(), 4500u);
  work = pair.near->compare_swap(key, 8, 1, 5);
  pair.near->wait(work, patience);
  CHECK_EQ(work->value(), 4499u);
  CHECK_EQ(number_at(window.memory, 8), 4499u);
  work = pair.near->compare_swap(key, 8, 4499, 5);
  pair.near->wait(work, patience);
  CHECK_EQ(number_at(window.memory, 8), 5u);
  CHECK_THROWS(UsageError, "multiple of 8", pair.near->fetch_add(key, 4, 1));
  CHECK_THROWS(UsageError, "", pair.near->fetch_add(key, 64, 1));
  // More than the device takes at a time.
  std::vector<std::shared_ptr<Request>> works;
  for (int i = 0; i < 1000; ++i) works.push_back(pair.near->fetch_add(key, 16, 1));
  for (uint64_t i = 0; i < works.size(); ++i) {
    pair.near->wait(works[i], patience);
    CHECK_EQ(works[i]->value(), i);
  }
}

TEST(flush_ends_after_what_was_started_before_it) {
  Pair pair;
  Window window(pair, 4'000'000);
  pair.near->wait(pair.near->flush(), patience);
  auto data = content(3'000'000, 4);
  std::vector<std::shared_ptr<Request>> works;
  for (int i = 0; i < 20; ++i) {
    works.push_back(pair.near->write(memory_of(data), window.region->key(), static_cast<uint64_t>(i)));
    works.push_back(pair.near->fetch_add(window.region->key(), 3'999'992, 1));
  }
  pair.near->wait(pair.near->flush(), patience);
  for (const auto& work : works) CHECK(work->succeeded());
  CHECK_EQ(number_at(window.memory, 3'999'992), 20u);
}

TEST(a_hundred_thousand_writes_outstanding) {
  Pair pair;
  constexpr size_t count = 100'000;
  Window window(pair, count);
  auto data = content(count, 8);
  std::vector<std::shared_ptr<Request>> works;
  works.reserve(count);
  for (size_t i = 0; i < count; ++i)
    works.push_back(pair.near->write({data.data() + i, 1, {}, {}}, window.region->key(), i));
  pair.near->wait(pair.near->flush(), patience);
  for (const auto& work : works) CHECK(work->succeeded());
  CHECK(window.memory == data);
}

TEST(any_tag_receives_in_order_and_tells_the_tag) {
  Pair pair;
  std::vector<uint8_t> received(100'000);
  const auto posted = pair.far->ireceive(memory_of(received), {});
  auto data = content(50'000, 1);
  pair.near->send(memory_of(data), 77, patience);
  pair.far->wait(posted, patience);
  CHECK_EQ(posted->tag(), 77u);
  CHECK_EQ(posted->bytes(), data.size());

  auto small = content(5, 2);
  for (uint64_t tag : {9, 8, 9}) pair.near->send(memory_of(small), tag, patience);
  CHECK_EQ(pair.far->probe({}, patience).tag, 9u);
  CHECK_EQ(pair.far->probe(8, patience).bytes, 5u);
  CHECK_EQ(pair.far->receive(memory_of(received), 8, patience), 5u);
  for (int i = 0; i < 2; ++i) {
    const auto work = pair.far->ireceive(memory_of(received), {});
    pair.far->wait(work, patience);
    CHECK_EQ(work->tag(), 9u);
  }
  CHECK(!pair.far->iprobe({}).has_value());
  CHECK_THROWS(TimeoutError, "of any tag", pair.far->probe({}, 0.01));
}

TEST(what_came_before_the_end_is_found_after_it) {
  Pair pair;
  Window window(pair, 8);
  auto data = content(8, 1);
  pair.near->send(memory_of(data), 3, patience);
  pair.near->wait(pair.near->write(memory_of(data), window.region->key(), 0, 12), patience);
  pair.near->close();
  CHECK_EQ(pair.far->probe({}, patience).tag, 3u);
  CHECK_EQ(pair.far->next_notification(patience), 12u);
  CHECK_THROWS(PeerLostError, "closed", pair.far->next_notification(patience));
  CHECK_THROWS(PeerLostError, "closed", pair.far->probe(4, patience));
}

RDMATX_TEST_MAIN()
