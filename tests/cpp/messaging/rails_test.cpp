// Connections over several rails, one of which fails and comes back, within one process.

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/connection_pair.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

// A software HCA whose port can be made to go down, and whose queue pairs can be broken.
std::atomic<bool> port_down{false};
std::atomic<bool> device_gone{false};
std::mutex breakable_mutex;
std::vector<ibv_qp*> breakable;

const Verbs* flaky_verbs() {
  static const Verbs verbs = [] {
    Verbs copy = *soft_verbs();
    copy.query_port = [](ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
      if (device_gone) return ENODEV;
      const int code = soft_verbs()->query_port(context, port, attributes);
      if (port_down) attributes->state = IBV_PORT_DOWN;
      return code;
    };
    copy.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* attributes) {
      ibv_qp* qp = soft_verbs()->create_qp(pd, attributes);
      const std::lock_guard lock(breakable_mutex);
      if (qp) breakable.push_back(qp);
      return qp;
    };
    copy.destroy_qp = [](ibv_qp* qp) {
      {
        const std::lock_guard lock(breakable_mutex);
        std::erase(breakable, qp);
      }
      return soft_verbs()->destroy_qp(qp);
    };
    return copy;
  }();
  return &verbs;
}

// As a cable that is pulled looks to a queue pair, long after.
void break_queue_pairs() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const std::lock_guard lock(breakable_mutex);
  for (ibv_qp* qp : breakable) soft_verbs()->modify_qp(qp, &attributes, IBV_QP_STATE);
}

OpenedDevices two_rails(bool flaky_first) {
  port_down = device_gone = false;
  const auto flaky = Device::open(flaky_verbs());
  const auto good = Device::open(soft_verbs());
  return flaky_first ? OpenedDevices{{flaky, good}, false} : OpenedDevices{{good, flaky}, false};
}

OpenedDevices three_rails() {
  port_down = device_gone = false;
  return {{Device::open(flaky_verbs()), Device::open(flaky_verbs()), Device::open(soft_verbs())}, false};
}

void exchange(Pair& pair, size_t bytes, uint32_t seed) {
  auto sent = content(bytes, seed);
  std::vector<uint8_t> received(bytes);
  const auto work = pair.near->isend(memory_of(sent), 5);
  CHECK_EQ(pair.far->receive(memory_of(received), 5, {}), bytes);
  pair.near->wait(work, {});
  CHECK(received == sent);
}

template <typename Condition>
void wait_for(Pair& pair, Condition condition) {
  const Deadline deadline(patience);
  std::vector<uint8_t> nothing(1);
  while (!condition()) {
    CHECK(!deadline.passed());
    // Whoever waits makes progress.
    try {
      pair.near->probe(99, 0.01);
    } catch (const TimeoutError&) {
    }
  }
}

uint64_t errors_of(Pair& pair, size_t rail) {
  return pair.near->rail_stats()[rail].errors + pair.far->rail_stats()[rail].errors;
}

bool all_alive(Pair& pair) {
  for (const auto& end : {pair.near, pair.far})
    for (const RailStats& rail : end->rail_stats())
      if (!rail.alive) return false;
  return true;
}

}  // namespace

TEST(large_messages_go_over_both_rails) {
  Pair pair(two_rails(false));
  for (size_t bytes : {0, 8, 8192, 8193, 500'000, 600'000, 20'000'000}) exchange(pair, bytes, 1);
  const auto rails = pair.near->rail_stats();
  CHECK_EQ(rails.size(), 2u);
  CHECK(rails[0].bytes > 2'000'000 && rails[1].bytes > 2'000'000);
  CHECK_EQ(rails[0].bytes + rails[1].bytes, 8193u + 500'000 + 600'000 + 20'000'000);
}

TEST(one_sided_operations_use_all_rails) {
  Pair pair(two_rails(false));
  std::vector<uint8_t> remote(9'000'000);
  const auto region = pair.context->register_memory(
      memory_of(remote), false, RemoteAccess::read | RemoteAccess::write | RemoteAccess::atomic);
  const RemoteKey key = RemoteKey::from_bytes(region->key().to_bytes());
  auto data = content(8'000'001, 2);
  const auto work = pair.near->write(memory_of(data), key, 3, 77);
  CHECK_EQ(pair.far->next_notification(patience), 77u);
  CHECK(std::equal(data.begin(), data.end(), remote.begin() + 3));
  pair.near->wait(work, patience);
  std::vector<uint8_t> back(data.size());
  pair.near->wait(pair.near->read(memory_of(back), key, 3), patience);
  CHECK(back == data);
  pair.near->wait(pair.near->fetch_add(key, 8'999'000 - key.address % 8, 5), patience);
  pair.near->wait(pair.near->flush(), patience);
}

TEST(a_port_that_goes_down_costs_nothing_and_comes_back) {
  for (bool flaky_first : {false, true}) {
    Pair pair(two_rails(flaky_first));
    const size_t flaky = flaky_first ? 0 : 1;
    exchange(pair, 4'000'000, 1);
    port_down = true;
    for (uint32_t i = 0; i < 40; ++i) exchange(pair, i % 2 ? 100 : 3'000'000, i);
    wait_for(pair, [&] { return errors_of(pair, flaky) >= 2; });
    exchange(pair, 1'000'000, 7);
    CHECK(!pair.near->rail_stats()[flaky].alive);
    port_down = false;
    wait_for(pair, [&] { return all_alive(pair); });
    const uint64_t before = pair.near->rail_stats()[flaky].bytes;
    exchange(pair, 8'000'000, 8);
    CHECK(pair.near->rail_stats()[flaky].bytes > before);
    CHECK_EQ(pair.near->rail_stats()[flaky].recoveries, 1u);
  }
}

TEST(the_last_rail_is_the_connections_end) {
  port_down = false;
  Pair pair(OpenedDevices{{Device::open(flaky_verbs()), Device::open(flaky_verbs())}, false});
  exchange(pair, 1'000'000, 1);
  break_queue_pairs();
  std::vector<uint8_t> data(1'000'000);
  CHECK_THROWS(Error, "", pair.near->receive(memory_of(data), 1, patience));
  CHECK_THROWS(Error, "", pair.far->receive(memory_of(data), 1, patience));
}

TEST(a_device_that_is_gone_ends_its_connections) {
  port_down = device_gone = false;
  Pair pair(flaky_verbs());
  exchange(pair, 100'000, 1);
  std::vector<uint8_t> data(100'000);
  const auto pending = pair.near->ireceive(memory_of(data), 3);
  device_gone = true;
  CHECK_THROWS(UnavailableError, "is gone", pair.far->receive(memory_of(data), 1, patience));
  CHECK_THROWS(Error, "is gone", pair.near->wait(pending, patience));
  CHECK_THROWS(Error, "is gone", pair.near->send(memory_of(data), 1, patience));
}

TEST(a_device_that_is_gone_is_one_rail_less) {
  Pair pair(two_rails(true));
  exchange(pair, 4'000'000, 1);
  device_gone = true;
  wait_for(pair, [&] { return errors_of(pair, 0) >= 2; });
  exchange(pair, 4'000'000, 2);
  CHECK(!pair.near->rail_stats()[0].alive);
}

// Everything at once, in both directions, while a rail fails again and again: nothing is lost, doubled, out
// of order or damaged.
TEST(traffic_survives_failing_rails) {
  // Which of the rails fail: the second, the first, the first two of three at once.
  for (int layout : {0, 1, 2}) {
    Pair pair(layout == 2 ? three_rails() : two_rails(layout == 1));
    constexpr uint32_t messages = 4000;
    std::vector<uint8_t> windows[2] = {std::vector<uint8_t>(2 << 20), std::vector<uint8_t>(2 << 20)};
    std::shared_ptr<Region> regions[2];
    for (int i = 0; i < 2; ++i)
      regions[i] = pair.context->register_memory(memory_of(windows[i]), false, RemoteAccess::write);
    const auto size_of = [](uint32_t i) -> size_t {
      return i % 50 == 0 ? 2'000'000 : i % 9 == 0 ? 30'000 : i % 700;
    };
    std::atomic<int> wrong{0};
    std::atomic<int> running{0};
    std::vector<std::thread> threads;
    const auto run = [&](auto body) {
      ++running;
      threads.emplace_back([&, body] {
        try {
          body();
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s\n", error.what());
          ++wrong;
        }
        --running;
      });
    };
    for (int side = 0; side < 2; ++side) {
      const auto from = side == 0 ? pair.near : pair.far;
      const auto to = side == 0 ? pair.far : pair.near;
      run([&, from] {
        for (uint32_t i = 0; i < messages; ++i) {
          auto data = content(size_of(i), i);
          from->send(memory_of(data), 1, patience);
        }
      });
      run([&, to] {
        std::vector<uint8_t> received(2'000'000);
        for (uint32_t i = 0; i < messages; ++i) {
          const uint64_t bytes = to->receive(memory_of(received), 1, patience);
          const auto expected = content(size_of(i), i);
          if (bytes != expected.size() || !std::equal(expected.begin(), expected.end(), received.begin()))
            ++wrong;
        }
      });
      run([&, from, side] {
        auto data = content(600'000, static_cast<uint32_t>(side));
        for (uint32_t i = 0; i < messages / 3; ++i) {
          OperationMemory memory = memory_of(data);
          if (i % 20 != 0) memory.bytes = 64;
          // The first stays as it is, to be looked at.
          from->wait(from->write(memory, regions[side]->key(), i == 0 ? 0 : 1 << 20, i), patience);
        }
      });
      run([&, to, side] {
        const auto expected = content(600'000, static_cast<uint32_t>(side));
        for (uint32_t i = 0; i < messages / 3; ++i) {
          if (to->next_notification(patience) != i) ++wrong;
          if (i == 0 && !std::equal(expected.begin(), expected.end(), windows[side].begin())) ++wrong;
        }
      });
    }
    std::mt19937 random(static_cast<uint32_t>(layout));
    while (running > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 100));
      if (random() % 2 == 0) {
        break_queue_pairs();
      } else {
        port_down = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
        port_down = false;
      }
    }
    for (auto& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
    CHECK(errors_of(pair, layout == 0 ? 1 : 0) > 0);
  }
}

TEST(nothing_is_left) {
  {
    Pair pair(two_rails(true));
    break_queue_pairs();
    exchange(pair, 1'000'000, 1);
  }
  for (int kind = 0; kind < static_cast<int>(ObjectKind::count); ++kind)
    CHECK_EQ(live_objects(static_cast<ObjectKind>(kind)), 0);
}

RDMATX_TEST_MAIN()
