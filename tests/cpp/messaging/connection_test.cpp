// Connections within one process, on the software HCA: what the sanitizers should see, and what only a device
// with small limits shows.

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/connection_pair.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

void exchange(Pair& pair, size_t bytes) {
  auto sent = content(bytes, static_cast<uint32_t>(bytes));
  std::vector<uint8_t> received(bytes + 3);
  const auto work = pair.near->isend(memory_of(sent), 5);
  CHECK_EQ(pair.far->receive(memory_of(received), 5, {}), bytes);
  pair.near->wait(work, {});
  received.resize(bytes);
  CHECK(received == sent);
}

}  // namespace

TEST(every_size_arrives) {
  Pair pair;
  for (size_t bytes : {0, 1, 8, 216, 217, 4096, 8192, 8193, 100'000, 3'000'000}) exchange(pair, bytes);
}

TEST(small_registrations_and_messages_are_planned_around) {
  Pair pair(poor_verbs());
  for (size_t bytes : {size_t{8193}, size_t{300'001}, size_t{300'002}, size_t{1} << 21, (size_t{1} << 21) + 1,
                       size_t{9'000'001}})
    exchange(pair, bytes);
}

TEST(a_region_larger_than_a_registration_is_refused) {
  Pair pair(poor_verbs());
  std::vector<uint8_t> memory((1 << 21) + 1);
  CHECK_THROWS(UsageError, "register it in parts",
               pair.context->register_memory(memory_of(memory), false, 0));
}

TEST(one_sided_in_pieces) {
  Pair pair(poor_verbs());
  std::vector<uint8_t> remote(2'000'000);
  const auto region =
      pair.context->register_memory(memory_of(remote), false, RemoteAccess::read | RemoteAccess::write);
  auto local = content(1'500'000, 3);
  pair.near->wait(pair.near->write(memory_of(local), region->key(), 1000), {});
  CHECK(std::equal(local.begin(), local.end(), remote.begin() + 1000));
  std::vector<uint8_t> back(1'500'000);
  pair.near->wait(pair.near->read(memory_of(back), region->key(), 1000), {});
  CHECK(back == local);
}

TEST(thousands_outstanding) {
  Pair pair;
  constexpr int count = 3000;
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> received;
  std::vector<std::shared_ptr<Request>> works;
  for (int i = 0; i < count; ++i) {
    sent.push_back(content(i % 50 == 0 ? 20'000 : 40, static_cast<uint32_t>(i)));
    received.emplace_back(sent.back().size());
  }
  for (auto& data : received) works.push_back(pair.far->ireceive(memory_of(data), 0));
  for (auto& data : sent) works.push_back(pair.near->isend(memory_of(data), 0));
  for (int i = 0; i < 2 * count; ++i) (i < count ? pair.far : pair.near)->wait(works[i], {});
  CHECK(sent == received);
}

// Far more messages than may wait at a receiver: credit is held back, and comes when they are taken.
TEST(messages_beyond_what_may_wait_are_received_to_the_last) {
  for (bool posted_receives : {false, true}) {
    Pair pair;
    constexpr uint32_t count = ProtocolSizes::unexpected_messages + 5000;
    std::vector<uint32_t> numbers(count);
    std::vector<std::shared_ptr<Request>> works;
    for (uint32_t i = 0; i < count; ++i) {
      numbers[i] = i;
      works.push_back(pair.near->isend({&numbers[i], sizeof(uint32_t), {}, {}, {}, {}}, 1));
    }
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t number = 0;
      const OperationMemory memory{&number, sizeof number, {}, {}, {}, {}};
      if (posted_receives)
        pair.far->wait(pair.far->ireceive(memory, 1), patience);
      else
        pair.far->receive(memory, 1, patience);
      CHECK_EQ(number, i);
    }
    for (const auto& work : works) pair.near->wait(work, patience);
  }
}

TEST(threads_share_a_connection) {
  Pair pair;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t tag = 0; tag < 3; ++tag) {
    for (const auto& end : {pair.near, pair.far}) {
      threads.emplace_back([&wrong, end, tag] {
        for (uint32_t i = 0; i < 100; ++i) {
          auto sent = content(i * 211 % 30'000, i);
          std::vector<uint8_t> received(30'000);
          const auto work = end->isend(memory_of(sent), tag);
          const uint64_t bytes = end->receive(memory_of(received), tag, {});
          end->wait(work, {});
          received.resize(bytes);
          if (received != sent) ++wrong;
        }
      });
    }
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(checked_messages_arrive) {
  Pair pair(poor_verbs(), true);
  CHECK(pair.near->verifies() && pair.far->verifies());
  for (size_t bytes : {0, 1, 8192, 8193, 300'002, 3'000'000}) exchange(pair, bytes);
}

TEST(a_damaged_message_is_found_before_its_receive_ends) {
  Pair pair(soft_verbs(), true);
  auto sent = content(1'000'000, 1);
  const auto work = pair.near->isend(memory_of(sent), 5);
  sent[777'777] ^= 1;  // what the wire carries is not what was to be sent
  std::vector<uint8_t> received(sent.size());
  CHECK_THROWS(CompletionError, "damaged", pair.far->receive(memory_of(received), 5, patience));
  CHECK_THROWS(CompletionError, "damaged", pair.far->send(memory_of(sent), 5, patience));
  CHECK_THROWS(Error, "damaged", pair.near->receive(memory_of(received), 5, patience));
}

TEST(closing_under_waiting_threads) {
  for (int round = 0; round < 10; ++round) {
    Pair pair;
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (uint64_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        std::vector<uint8_t> data(100'000);
        try {
          (tag % 2 ? pair.near : pair.far)->receive(memory_of(data), tag, {});
        } catch (const Error&) {
          ++ended;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    pair.context->close();
    for (auto& thread : threads) thread.join();
    CHECK_EQ(ended.load(), 4);
  }
}

TEST(nothing_is_left) {
  {
    Pair pair;
  }
  for (int kind = 0; kind < static_cast<int>(ObjectKind::count); ++kind)
    CHECK_EQ(live_objects(static_cast<ObjectKind>(kind)), 0);
}

RDMATX_TEST_MAIN()
