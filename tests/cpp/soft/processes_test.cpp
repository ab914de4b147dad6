// Two processes of one host. Runs twice: as the kernel allows, and with shared memory alone
// (RDMATX_SOFT_WIRE=shm), where every byte goes through the ring. And once more over TCP.

#include "soft/child.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr size_t big = 12'345'678;
const bool over_tcp =
    std::getenv("RDMATX_SOFT_WIRE") && std::string_view(std::getenv("RDMATX_SOFT_WIRE")) == "tcp";

/// The target sleeps in a read: one-sided work needs nothing from its program.
void write_and_read_back(bool shared) {
  Child child([shared](int in, int out) {
    End end(big, shared);
    introduce(end, in, out);
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
    const bool good = holds(end, 0, big, 5);
    CHECK_EQ(write(out, &good, 1), 1);
    CHECK_EQ(read(in, &word, 1), 1);
  });
  End end(big);
  const Coordinates target = introduce(end, child);
  fill(end, 5);
  for (const uint32_t bytes : {1u, 4095u, 65'536u, 65'537u, 1'000'000u, static_cast<uint32_t>(big)}) {
    CHECK_EQ(end.post(IBV_WR_RDMA_WRITE, 0, bytes, &target), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
  }
  child.put('x');
  CHECK(child.get<bool>());
  std::memset(end.memory, 0, end.size);
  CHECK_EQ(end.post(IBV_WR_RDMA_READ, 0, static_cast<uint32_t>(big), &target), 0);
  const ibv_wc completion = end.next();
  CHECK_EQ(completion.status, IBV_WC_SUCCESS);
  CHECK(holds(end, 0, big, 5));
  child.put('x');
  CHECK_EQ(child.exit_status(), 0);
}

}  // namespace

TEST(one_sided_into_ordinary_memory) {
  write_and_read_back(false);
}
TEST(one_sided_into_shared_memory) {
  write_and_read_back(true);
}

TEST(a_polling_target_helps_and_the_bytes_are_right) {
  Child child([](int in, int out) {
    End end(big);
    introduce(end, in, out);
    for (int i = 0; i < 8; ++i) CHECK_EQ(end.receive(0, 0), 0);
    for (unsigned round = 0; round < 8; ++round) {
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);  // polls all the while
      const bool good = holds(end, 0, big, round);
      CHECK_EQ(write(out, &good, 1), 1);
    }
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
  });
  End end(big);
  const Coordinates target = introduce(end, child);
  for (unsigned round = 0; round < 8; ++round) {
    fill(end, round);
    CHECK_EQ(end.post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, static_cast<uint32_t>(big), &target), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    CHECK(child.get<bool>());
  }
  child.put('x');
  CHECK_EQ(child.exit_status(), 0);
}

TEST(a_target_that_helps_with_write_after_write) {
  constexpr uint32_t part = 300'000;
  constexpr int writes = 2000;
  Child child([](int in, int out) {
    End end(big);
    introduce(end, in, out);
    CHECK_EQ(end.receive(0, 0), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);  // polls all the while
    const bool good = holds(end, 0, 40 * part, 9);
    CHECK_EQ(write(out, &good, 1), 1);
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
  });
  End end(big);
  const Coordinates target = introduce(end, child);
  fill(end, 9);
  for (int posted = 0, completed = 0; completed < writes;) {
    while (posted < writes && posted - completed < 8) {
      const size_t place = static_cast<size_t>(posted++ % 40) * part;
      CHECK_EQ(end.post(IBV_WR_RDMA_WRITE, place, part, &target, place), 0);
    }
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    ++completed;
  }
  CHECK_EQ(end.post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, &target), 0);
  CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
  CHECK(child.get<bool>());
  child.put('x');
  CHECK_EQ(child.exit_status(), 0);
}

TEST(the_death_of_the_peer_ends_everything_within_a_second) {
  for (int round = 0; round < 10; ++round) {
    Child child([](int in, int out) {
      End end;
      introduce(end, in, out);
      for (;;) pause();
    });
    End end;
    const Coordinates target = introduce(end, child);
    if (round % 2) {  // it dies connected; else perhaps before that
      CHECK_EQ(end.post(IBV_WR_RDMA_WRITE, 0, 8, &target), 0);
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    }
    CHECK_EQ(end.receive(0, 16, 1), 0);
    for (uint64_t i = 2; i < 5; ++i) CHECK_EQ(end.post(IBV_WR_SEND, 0, 100'000, nullptr, 0, i), 0);
    child.kill();
    const auto killed = std::chrono::steady_clock::now();
    for (uint64_t i = 2; i < 5; ++i) {
      const ibv_wc completion = end.next();
      CHECK_EQ(completion.wr_id, i);
      CHECK_EQ(completion.status, i == 2 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
    }
    CHECK_EQ(end.next().status, IBV_WC_WR_FLUSH_ERR);
    CHECK(std::chrono::steady_clock::now() - killed < std::chrono::seconds(1));
    if (over_tcp && round % 2 == 0) continue;  // no event tells that nothing was ever connected
    ibv_async_event event{};
    CHECK_EQ(end.verbs->get_async_event(end.context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  }
}

TEST(a_forked_child_cannot_use_its_parents_queue_pairs) {
#ifdef __SANITIZE_THREAD__
  throw Skipped(
      "the thread sanitizer allows no threads in a child that was forked by one of several threads");
#endif
  End one, other;
  one.connect(other.coordinates());
  other.connect(one.coordinates());
  Child child([&](int, int) {
    CHECK_EQ(one.post(IBV_WR_SEND, 0, 8), EOWNERDEAD);
    ibv_wc completion;
    CHECK_EQ(ibv_poll_cq(one.cq, 1, &completion), -1);
    CHECK(one.verbs->alloc_pd(one.context) == nullptr);
    End own, second;  // one of its own works
    own.connect(second.coordinates());
    second.connect(own.coordinates());
    CHECK_EQ(second.receive(0, 8), 0);
    CHECK_EQ(own.post(IBV_WR_SEND, 0, 8), 0);
    CHECK_EQ(own.next().status, IBV_WC_SUCCESS);
  });
  CHECK_EQ(child.exit_status(), 0);
  CHECK_EQ(other.receive(0, 8), 0);
  CHECK_EQ(one.post(IBV_WR_SEND, 0, 8), 0);
  CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
}

RDMATX_TEST_MAIN()
