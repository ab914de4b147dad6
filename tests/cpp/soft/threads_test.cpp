// Several threads at one software HCA: what the sanitizers are to look at.

#include <atomic>
#include <memory>

#include "soft/ends.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

void stream(End& one, End& other, int messages, uint32_t bytes) {
  std::atomic<bool> failed{false};
  std::jthread receiver([&] {
    try {
      for (int i = 0; i < 16; ++i) CHECK_EQ(other.receive(0, bytes), 0);
      for (int i = 0; i < messages; ++i) {
        const ibv_wc completion = other.next();
        CHECK_EQ(completion.status, IBV_WC_SUCCESS);
        CHECK_EQ(completion.byte_len, bytes);
        CHECK_EQ(other.receive(0, bytes), 0);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      failed = true;
    }
  });
  int in_flight = 0;
  for (int i = 0; i < messages && !failed; ++i) {
    CHECK_EQ(one.post(IBV_WR_SEND, 0, bytes), 0);
    if (++in_flight == 32) {
      CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
      --in_flight;
    }
  }
  while (in_flight-- > 0) CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
  receiver.join();
  CHECK(!failed);
}

}  // namespace

TEST(one_thread_sends_and_another_receives) {
  for (const uint32_t bytes : {64u, 300'000u}) {
    End one, other;
    one.connect(other.coordinates());
    other.connect(one.coordinates());
    stream(one, other, bytes == 64 ? 3000 : 50, bytes);
  }
}

TEST(threads_share_a_queue_pair) {
  End one, other;
  one.connect(other.coordinates());
  other.connect(one.coordinates());
  const Coordinates target = other.coordinates();
  constexpr int threads = 4, writes = 400;
  std::atomic<int> completed{0};
  std::vector<std::jthread> writers;
  for (int t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      for (int i = 0; i < writes; ++i) {
        const size_t place = static_cast<size_t>(t) * 4096;
        while (one.post(IBV_WR_RDMA_WRITE, place, 4096, &target, place) == ENOMEM) {
        }
        ibv_wc completion{};
        while (ibv_poll_cq(one.cq, 1, &completion) == 1) completed += completion.status == IBV_WC_SUCCESS;
      }
    });
  for (auto& writer : writers) writer.join();
  while (completed < threads * writes) completed += one.next().status == IBV_WC_SUCCESS;
  CHECK_EQ(completed.load(), threads * writes);
}

TEST(nobody_polls_the_target) {
  End one, other;
  one.connect(other.coordinates());
  other.connect(one.coordinates());
  std::memset(one.memory, 7, one.size);
  const Coordinates target = other.coordinates();
  for (uint64_t expected = 0; expected < 20; ++expected) {
    ibv_sge sge{reinterpret_cast<uint64_t>(one.memory), 8, one.mr->lkey};
    ibv_send_wr work{}, *bad = nullptr;
    work.sg_list = &sge;
    work.num_sge = 1;
    work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.atomic = {target.address, 1, 0, target.key};
    CHECK_EQ(ibv_post_send(one.qp, &work, &bad), 0);
    CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
    uint64_t before = 0;
    std::memcpy(&before, one.memory, 8);
    CHECK_EQ(before, expected);
  }
}

TEST(a_region_goes_while_it_is_written_to) {
  for (int round = 0; round < 20; ++round) {
    End one, other;
    one.connect(other.coordinates());
    other.connect(one.coordinates());
    const Coordinates target = other.coordinates();
    std::atomic<bool> gone{false};
    std::jthread owner([&] {
      std::this_thread::yield();
      other.verbs->dereg_mr(other.mr);
      other.mr = nullptr;
      std::vector<std::byte>().swap(other.owned);  // a write after this is a use after free
      gone = true;
    });
    ibv_wc_status last = IBV_WC_SUCCESS;
    while (last == IBV_WC_SUCCESS) {
      CHECK_EQ(one.post(IBV_WR_RDMA_WRITE, 0, 60'000, &target), 0);
      last = one.next().status;
    }
    owner.join();
    CHECK_EQ(last, IBV_WC_REM_ACCESS_ERR);
  }
}

TEST(a_queue_pair_goes_while_its_peer_writes) {
  for (int round = 0; round < 20; ++round) {
    End one;
    auto other = std::make_unique<End>();
    one.connect(other->coordinates(), 1);
    other->connect(one.coordinates());
    const Coordinates target = other->coordinates();
    std::jthread owner([&] {
      std::this_thread::yield();
      other.reset();  // the queue pair, then the region, then its memory
    });
    ibv_wc_status last = IBV_WC_SUCCESS;
    while (last == IBV_WC_SUCCESS) {
      CHECK_EQ(one.post(IBV_WR_RDMA_WRITE, 0, 60'000, &target), 0);
      last = one.next().status;
    }
    CHECK_EQ(last, IBV_WC_RETRY_EXC_ERR);
  }
}

TEST(queue_pairs_come_and_go_while_others_work) {
  End one, other;
  one.connect(other.coordinates());
  other.connect(one.coordinates());
  std::atomic<bool> stop{false};
  std::jthread churn([&] {
    while (!stop) {
      End a(4096), b(4096);
      a.connect(b.coordinates());
      b.connect(a.coordinates());
      CHECK_EQ(a.post(IBV_WR_SEND, 0, 16), 0);
      std::this_thread::yield();
    }
  });
  stream(one, other, 500, 128);
  stop = true;
  churn.join();
}

RDMATX_TEST_MAIN()
