#include "messaging/registration_cache.hpp"

#include <atomic>
#include <cerrno>
#include <random>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "gpu/buffer.hpp"
#include "messaging/staging.hpp"
#include "rdma/faults.hpp"

using namespace rdmatx;

namespace {

constexpr Access sending = Access::none;
constexpr Access reading = Access::local_write;
constexpr Access receiving = Access::local_write | Access::remote_write;

/// Memory with an owner that dies with it.
struct Owned {
  explicit Owned(size_t bytes) : memory(bytes), owner(std::make_shared<MemoryOwner>(memory.data(), bytes)) {}
  ~Owned() { owner->die(); }
  std::byte* at(size_t offset) { return memory.data() + offset; }
  std::vector<std::byte> memory;
  std::shared_ptr<MemoryOwner> owner;
};

struct Fixture {
  explicit Fixture(uint64_t limit = uint64_t{1} << 30, bool remote = true)
      : domain(ProtectionDomain::create(open_device("", Provider::soft))),
        cache(RegistrationCache::create(domain, {true, remote, limit})) {}
  std::shared_ptr<MemoryRegion> acquire(Owned& owned, size_t offset, size_t bytes, Access access) {
    return cache->acquire(owned.owner, owned.at(offset), bytes, access, uint64_t{1} << 40);
  }
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<RegistrationCache> cache;
};

int64_t live_regions() {
  return live_objects(ObjectKind::memory_region);
}

}  // namespace

TEST(one_registration_serves_all_views) {
  Fixture fixture;
  Owned owned(100'000);
  const auto first = fixture.acquire(owned, 500, 1000, sending);
  CHECK_EQ(first->bytes(), 100'000u);
  for (size_t offset = 0; offset < 99'000; offset += 1000)
    CHECK(fixture.acquire(owned, offset, 1000, sending) == first);
  const RegistrationStats stats = fixture.cache->stats();
  CHECK_EQ(stats.misses, 1u);
  CHECK_EQ(stats.hits, 99u);
  CHECK_EQ(stats.entries, 1u);
  CHECK_EQ(stats.pinned_bytes, 100'000u);
  CHECK_EQ(live_regions(), 1);
}

TEST(peers_get_no_more_than_they_were_granted) {
  Fixture fixture;
  Owned owned(100'000);
  const auto local = fixture.acquire(owned, 0, 1000, reading);
  const auto remote = fixture.acquire(owned, 5000, 1000, receiving);
  CHECK(remote != local);
  CHECK_EQ(remote->bytes(), 1000u);
  CHECK(remote->address() == owned.at(5000));
  CHECK(fixture.acquire(owned, 5200, 100, receiving) == remote);
  CHECK(fixture.acquire(owned, 4999, 100, receiving) != remote);
  CHECK(fixture.acquire(owned, 7000, 1000, sending) == local);
  Fixture strict(1 << 30, false);
  CHECK(strict.acquire(owned, 0, 1000, receiving) == nullptr);
  CHECK(strict.acquire(owned, 0, 1000, reading) != nullptr);
}

TEST(a_larger_range_takes_the_place_of_smaller_ones) {
  Fixture fixture;
  Owned owned(10'000);
  fixture.acquire(owned, 1000, 1000, receiving);
  fixture.acquire(owned, 3000, 1000, receiving);
  CHECK_EQ(fixture.cache->stats().entries, 2u);
  const auto all = fixture.acquire(owned, 500, 5000, receiving);
  CHECK_EQ(fixture.cache->stats().entries, 1u);
  CHECK(fixture.acquire(owned, 3000, 1000, receiving) == all);
  CHECK_EQ(live_regions(), 1);
}

TEST(of_a_huge_owner_only_what_is_asked_for) {
  Fixture fixture;
  // Address space alone: nothing touches it but a registration.
  Owned huge(size_t{200} << 20);
  CHECK_EQ(fixture.acquire(huge, 1 << 20, 1 << 20, sending)->bytes(), uint64_t{1} << 20);
  CHECK_EQ(fixture.acquire(huge, 0, size_t{60} << 20, sending)->bytes(), uint64_t{200} << 20);
}

TEST(death_evicts_at_once) {
  Fixture fixture;
  for (int round = 0; round < 100; ++round) {
    Owned owned(5000);
    fixture.acquire(owned, 0, 5000, sending);
    fixture.acquire(owned, 0, 5000, receiving);
    CHECK(live_regions() > 0);
    owned.owner->die();
    CHECK_EQ(live_regions(), 0);
    // The dead is not registered again under its name.
    CHECK(fixture.acquire(owned, 0, 5000, sending) == nullptr);
  }
  CHECK_EQ(fixture.cache->stats().entries, 0u);
  CHECK_EQ(fixture.cache->stats().pinned_bytes, 0u);
}

TEST(an_operation_keeps_what_it_uses) {
  Fixture fixture(10'000);
  Owned first(6000), second(6000);
  const auto used = fixture.acquire(first, 0, 6000, sending);
  CHECK(fixture.acquire(second, 0, 6000, sending) == nullptr);  // no room while the other is in use
  first.owner->die();
  CHECK_EQ(live_regions(), 1);  // the operation's
  CHECK_EQ(fixture.cache->stats().pinned_bytes, 0u);
  CHECK(fixture.acquire(second, 0, 6000, sending) != nullptr);
}

TEST(the_least_recently_used_goes_first) {
  Fixture fixture(10'000);
  std::vector<std::unique_ptr<Owned>> owned;
  for (int i = 0; i < 4; ++i) owned.push_back(std::make_unique<Owned>(3000));
  for (int i = 0; i < 3; ++i) fixture.acquire(*owned[i], 0, 3000, sending);
  fixture.acquire(*owned[0], 0, 3000, sending);
  fixture.acquire(*owned[3], 0, 3000, sending);  // in the place of number 1
  CHECK_EQ(fixture.cache->stats().evictions, 1u);
  fixture.acquire(*owned[0], 0, 3000, sending);
  fixture.acquire(*owned[2], 0, 3000, sending);
  CHECK_EQ(fixture.cache->stats().hits, 3u);
  fixture.acquire(*owned[1], 0, 3000, sending);
  CHECK_EQ(fixture.cache->stats().misses, 5u);
  CHECK(fixture.cache->stats().pinned_bytes <= 10'000);
}

TEST(what_did_not_end_well_is_not_used_again) {
  Fixture fixture;
  Owned owned(5000);
  auto region = fixture.acquire(owned, 0, 5000, receiving);
  fixture.cache->discard(region);
  CHECK_EQ(fixture.cache->stats().entries, 0u);
  CHECK(fixture.acquire(owned, 0, 5000, receiving) != region);
  region.reset();
  CHECK_EQ(live_regions(), 1);
}

TEST(no_memory_to_pin_gives_up_what_is_unused) {
  // The call after two good ones fails once.
  const Verbs* verbs = faulty_verbs(Provider::soft, 3, {"reg_mr"});
  auto domain = ProtectionDomain::create(Device::open(verbs, ""));
  auto cache = RegistrationCache::create(domain, {true, true, 1 << 30});
  Owned used(5000), unused(5000), next(5000);
  const auto held = cache->acquire(used.owner, used.at(0), 5000, sending, 1 << 30);
  cache->acquire(unused.owner, unused.at(0), 5000, sending, 1 << 30);
  CHECK(cache->acquire(next.owner, next.at(0), 5000, sending, 1 << 30) != nullptr);
  CHECK_EQ(cache->stats().evictions, 1u);
  CHECK_EQ(cache->stats().entries, 2u);
}

TEST(closing_frees_everything) {
  Owned owned(5000);
  {
    Fixture fixture;
    fixture.acquire(owned, 0, 5000, sending);
    CHECK(RegistrationCache::of(*fixture.domain) == fixture.cache);
    fixture.cache->close();
    CHECK_EQ(live_regions(), 0);
    CHECK(fixture.acquire(owned, 0, 5000, sending) == nullptr);
    fixture.cache->close();
  }
  CHECK_EQ(live_objects(ObjectKind::protection_domain), 0);
  CHECK(!RegistrationCache::any_enabled());
}

TEST(several_caches_watch_one_owner) {
  Fixture first, second;
  Owned owned(5000);
  first.acquire(owned, 0, 5000, sending);
  second.acquire(owned, 0, 5000, sending);
  CHECK_EQ(live_regions(), 2);
  owned.owner->die();
  CHECK_EQ(live_regions(), 0);
}

// Threads that use, free and evict at once: under the thread sanitizer this is the test.
TEST(threads_share_a_cache) {
  Fixture fixture(60'000);
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      for (int round = 0; round < 400; ++round) {
        Owned owned(8000);
        for (int use = 0; use < 5; ++use) {
          const size_t offset = random() % 4000, bytes = 1 + random() % 4000;
          const Access access = random() % 2 ? sending : receiving;
          const auto region = fixture.acquire(owned, offset, bytes, access);
          if (!region) continue;
          const auto* first = static_cast<std::byte*>(region->address());
          if (first > owned.at(offset) || first + region->bytes() < owned.at(offset) + bytes) wrong = true;
          if (random() % 10 == 0) fixture.cache->discard(region);
        }
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(!wrong);
  CHECK_EQ(fixture.cache->stats().entries, 0u);
  CHECK_EQ(live_regions(), 0);
}

// ---- the pools

TEST(buffers_come_again_zeroed) {
  trim_host_buffers();
  const void* before = nullptr;
  for (int round = 0; round < 5; ++round) {
    const auto buffer = HostBuffer::create(100'000);
    if (round > 0) CHECK(buffer->data() == before);
    before = buffer->data();
    for (size_t i = 0; i < buffer->bytes(); ++i) CHECK(buffer->data()[i] == std::byte{0});
    std::fill_n(buffer->data(), buffer->bytes(), std::byte{0xff});
    // One in use is never handed out.
    CHECK(HostBuffer::create(100'000)->data() != buffer->data());
  }
  // A larger one of the same class sees nothing of it either.
  const auto larger = HostBuffer::create(100'500);
  for (size_t i = 0; i < larger->bytes(); ++i) CHECK(larger->data()[i] == std::byte{0});
}

TEST(registrations_of_buffers_outlive_them_until_the_pool_lets_go) {
  trim_host_buffers();
  Fixture fixture;
  for (int round = 0; round < 3; ++round) {
    const auto buffer = HostBuffer::create(50'000);
    const auto owner = find_host_memory_owner(buffer->data() + 100, 1000);
    CHECK(owner != nullptr);
    CHECK(fixture.cache->acquire(owner, buffer->data(), 50'000, receiving, 1 << 30) != nullptr);
  }
  CHECK_EQ(fixture.cache->stats().misses, 1u);
  CHECK_EQ(fixture.cache->stats().hits, 2u);
  trim_host_buffers();
  CHECK_EQ(live_regions(), 0);
  int elsewhere = 0;
  CHECK(find_host_memory_owner(&elsewhere, 4) == nullptr);
}

TEST(staging_is_registered_once) {
  trim_staging();
  Fixture fixture;
  for (int round = 0; round < 3; ++round) {
    const Staging staging(70'000);
    CHECK(fixture.cache->acquire(staging.owner(), staging.data(), 70'000, sending, 1 << 30) != nullptr);
  }
  CHECK_EQ(fixture.cache->stats().misses, 1u);
  trim_staging();
  CHECK_EQ(live_regions(), 0);
}

RDMATX_TEST_MAIN()
