#include <atomic>
#include <cstring>
#include <thread>

#include "check.hpp"
#include "soft/channel.hpp"

using namespace rdmatx::soft;

namespace {

/// A record whose payload can be recomputed from its number.
void fill(Record* record, uint32_t number) {
  auto* bytes = reinterpret_cast<unsigned char*>(record + 1);
  record->immediate = number;
  record->kind = RecordKind::send;
  for (uint32_t i = 0; i < record->bytes; ++i) bytes[i] = static_cast<unsigned char>(number + i);
}

bool intact(const Record* record, uint32_t number, size_t size) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(record + 1);
  if (record->immediate != number || record->bytes != size) return false;
  for (uint32_t i = 0; i < record->bytes; ++i)
    if (bytes[i] != static_cast<unsigned char>(number + i)) return false;
  return true;
}

size_t size_of(uint32_t number) {
  return (number * 2654435761u) % (Ring::max_payload + 1);
}

}  // namespace

TEST(records_of_every_size_arrive_in_order) {
  auto channel = Channel::create();
  Ring producer = channel->requests(), consumer = channel->requests();
  bool corrupt = false;
  for (uint32_t number = 0; number < 3000; ++number) {
    Record* record = producer.reserve(size_of(number));
    CHECK(record != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(record) % 64 == 0);
    fill(record, number);
    CHECK(consumer.front(&corrupt) == nullptr);  // nothing before the commit
    producer.commit();
    const Record* arrived = consumer.front(&corrupt);
    CHECK(arrived != nullptr && intact(arrived, number, size_of(number)));
    CHECK_EQ(consumer.front(&corrupt), arrived);  // looking does not take
    consumer.pop();
  }
  CHECK(!corrupt && consumer.empty());
}

TEST(a_full_ring_refuses_and_recovers) {
  auto channel = Channel::create();
  Ring producer = channel->requests(), consumer = channel->requests();
  bool corrupt = false;
  uint32_t stored = 0;
  while (Record* record = producer.reserve(Ring::max_payload)) {
    fill(record, stored++);
    producer.commit();
  }
  CHECK_EQ(stored, Channel::request_bytes / (64 * 1024));
  CHECK(producer.reserve(0) == nullptr);
  CHECK(consumer.front(&corrupt) != nullptr);
  consumer.pop();
  CHECK(producer.reserve(0) != nullptr);
}

TEST(small_payloads_stay_at_the_beginning) {
  auto channel = Channel::create();
  Ring producer = channel->requests(), consumer = channel->requests();
  bool corrupt = false;
  const auto pass_one = [&](size_t bytes, uint32_t number) {
    Record* record = producer.reserve(bytes);
    CHECK(record != nullptr);
    fill(record, number);
    producer.commit();
    const Record* arrived = consumer.front(&corrupt);
    CHECK(arrived != nullptr && intact(arrived, number, bytes));
    consumer.pop();
    return reinterpret_cast<std::byte*>(record);
  };
  std::byte* const first = pass_one(8, 0);
  for (uint32_t number = 1; number < 50'000; ++number)
    CHECK(pass_one(number % 4000, number) < first + Ring::small_bytes);
  // Large ones go round the whole ring, also with small ones in between.
  bool far = false;
  for (uint32_t number = 0; number < 100; ++number) {
    pass_one(Ring::max_payload, number);
    far |= pass_one(64, number) > first + Channel::request_bytes * 3 / 4;
  }
  CHECK(far);
  // Then small ones alone come back.
  for (uint32_t number = 0; number < 10'000; ++number) pass_one(64, number);
  for (uint32_t number = 0; number < 50'000; ++number)
    CHECK(pass_one(64, number) < first + Ring::small_bytes);
  CHECK(!corrupt);
}

TEST(nonsense_in_the_ring_is_told_and_not_followed) {
  for (const uint64_t head : {uint64_t{32}, Channel::request_bytes + 64, ~uint64_t{0}}) {
    auto channel = Channel::create();
    Ring consumer = channel->requests();
    bool corrupt = false;
    channel->state().requests.head.store(head);
    CHECK(consumer.front(&corrupt) == nullptr);
    CHECK(corrupt);
  }
  auto channel = Channel::create();
  Ring producer = channel->requests(), consumer = channel->requests();
  Record* record = producer.reserve(8);
  record->bytes = 0xffffffff;  // longer than what was published
  producer.commit();
  bool corrupt = false;
  CHECK(consumer.front(&corrupt) == nullptr);
  CHECK(corrupt);
}

TEST(two_threads_share_a_ring) {
  constexpr uint32_t records = 20000;
  auto channel = Channel::create();
  std::atomic<bool> stop{false};
  std::jthread sender([&] {
    Ring producer = channel->requests();
    for (uint32_t number = 0; number < records && !stop; ++number) {
      Record* record = nullptr;
      while (!(record = producer.reserve(size_of(number) % 3000)) && !stop) std::this_thread::yield();
      if (!record) return;
      fill(record, number);
      producer.commit();
    }
  });
  Ring consumer = channel->requests();
  bool corrupt = false, good = true;
  for (uint32_t number = 0; number < records && good;) {
    const Record* record = consumer.front(&corrupt);
    if (!record) {
      std::this_thread::yield();
      good = !corrupt;
      continue;
    }
    good = intact(record, number, size_of(number) % 3000);
    consumer.pop();
    ++number;
  }
  stop = true;
  sender.join();
  CHECK(good);
}

RDMATX_TEST_MAIN()
