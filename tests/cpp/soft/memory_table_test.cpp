#include <infiniband/verbs.h>

#include <set>

#include "check.hpp"
#include "soft/memory_table.hpp"

using namespace rdmatx::soft;

namespace {
constexpr uint32_t read_write = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
}

TEST(a_key_opens_its_region_and_nothing_else) {
  auto table = MemoryTable::create();
  const uint32_t key = table->add(1000, 100, 7, read_write, nullptr);
  CHECK(key != 0);
  CHECK(table->find(key, 1000, 100, 7, read_write) != nullptr);
  CHECK(table->find(key, 1099, 1, 7, IBV_ACCESS_REMOTE_READ) != nullptr);
  CHECK(table->find(key, 1100, 0, 7, 0) != nullptr);
  CHECK(table->find(key, 999, 1, 7, 0) == nullptr);
  CHECK(table->find(key, 1000, 101, 7, 0) == nullptr);
  CHECK(table->find(key, 1100, 1, 7, 0) == nullptr);
  CHECK(table->find(key, 1001, ~uint64_t{0}, 7, 0) == nullptr);  // the sum would wrap
  CHECK(table->find(key, 1000, 100, 8, 0) == nullptr);           // another protection domain
  CHECK(table->find(key, 1000, 100, 7, IBV_ACCESS_REMOTE_ATOMIC) == nullptr);
  CHECK(table->find(key + 1, 1000, 1, 7, 0) == nullptr);
  CHECK(table->find(0, 1000, 1, 7, 0) == nullptr);
  CHECK(table->find(~0u, 1000, 1, 7, 0) == nullptr);
}

TEST(a_removed_key_stays_shut) {
  auto table = MemoryTable::create();
  std::set<uint32_t> old;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t key = table->add(1000, 100, 7, read_write, nullptr);
    CHECK(old.insert(key).second);  // no key comes round again soon
    CHECK(table->find(key, 1000, 1, 7, 0) != nullptr);
    table->remove(key);
    table->release(key);
    CHECK(table->find(key, 1000, 1, 7, 0) == nullptr);
  }
}

TEST(a_peer_sees_what_the_owner_registers) {
  auto table = MemoryTable::create();
  auto seen = MemoryTable::map(rdmatx::UniqueFd(dup(table->fd())));
  const uint32_t key = table->add(1000, 100, 7, read_write, nullptr);
  CHECK(seen->find(key, 1000, 100, 7, read_write) != nullptr);
  table->remove(key);
  CHECK(seen->find(key, 1000, 100, 7, read_write) == nullptr);
}

TEST(a_full_table_refuses) {
  auto table = MemoryTable::create();
  uint32_t last = 0, count = 0;
  while (const uint32_t key = table->add(count, 1, 1, 0, nullptr)) {
    last = key;
    ++count;
  }
  CHECK_EQ(count, MemoryTable::max_entries - 1);
  table->remove(last);
  table->release(last);
  CHECK(table->add(0, 1, 1, 0, nullptr) != 0);
}

RDMATX_TEST_MAIN()
