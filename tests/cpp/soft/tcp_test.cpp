// The TCP wire: several streams, peers that stop, vanish or take memory away, and strangers at the port.

#include <dirent.h>
#include <sys/socket.h>

#include "soft/child.hpp"
#include "soft/sockets.hpp"
#include "soft/tcp_messages.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

/// Before the first device is opened: what the cases need of the environment.
const bool prepared = [] {
  setenv("RDMATX_SOFT_WIRE", "tcp", 1);
  setenv("RDMATX_SOFT_PEER_TIMEOUT", "2", 1);
  return true;
}();

// The thread sanitizer looks at every byte.
#ifdef __SANITIZE_THREAD__
constexpr size_t big = 1'234'567;
constexpr uint32_t huge = 12 << 20;
constexpr int many = 2000;
#else
constexpr size_t big = 12'345'678;
constexpr uint32_t huge = 48 << 20;  // more than all buffers on the way hold
constexpr int many = 70'000;         // more than there are numbers
#endif
constexpr uint16_t first_port = 61000;

void set_streams(int count) {
  setenv("RDMATX_SOFT_STREAMS", std::to_string(count).c_str(), 1);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

/// A stranger's connection to the port that the queue pair is reached at.
UniqueFd knock(const Coordinates& door) {
  const auto address =
      soft::address_of(door.gid, static_cast<uint16_t>(first_port + (door.queue_pair >> 16)));
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(socket && connect(socket.get(), address.get(), address.size) == 0);
  return socket;
}

/// Says it and waits for the door to be shut; false where it is not within seconds.
bool is_shut_on(const Coordinates& door, const void* words, size_t bytes) {
  const UniqueFd socket = knock(door);
  const timeval patience{10, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  send(socket.get(), words, bytes, MSG_NOSIGNAL);
  char byte;
  const ssize_t got = recv(socket.get(), &byte, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

struct Pair {
  explicit Pair(size_t bytes = 1 << 20) : one(bytes), other(bytes) {
    one.connect(other.coordinates());
    other.connect(one.coordinates());
  }
  End one, other;
};

void expect_traffic(Pair& pair) {
  CHECK_EQ(pair.other.receive(0, 64), 0);
  CHECK_EQ(pair.one.post(IBV_WR_SEND, 0, 64), 0);
  CHECK_EQ(pair.one.next().status, IBV_WC_SUCCESS);
  CHECK_EQ(pair.other.next().status, IBV_WC_SUCCESS);
}

soft::TcpHello::Address bytes_of(const ibv_gid& gid) {
  soft::TcpHello::Address bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return bytes;
}

}  // namespace

TEST(strangers_are_shut_out) {
  Pair pair(4096);
  const Coordinates door = pair.other.coordinates();
  const char http[] = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";
  CHECK(is_shut_on(door, http, sizeof http - 1));
  const std::vector<char> ones(100'000, '\xff');
  CHECK(is_shut_on(door, ones.data(), ones.size()));
  CHECK(is_shut_on(door, "rdmatx", 6));  // and then nothing more
  auto hello = soft::encode(soft::TcpHello{});
  CHECK(is_shut_on(door, hello.data(), hello.size()));  // of nobody
  hello[9] = std::byte{9};
  CHECK(is_shut_on(door, hello.data(), hello.size()));  // of another version
  expect_traffic(pair);
}

TEST(who_does_not_know_the_sequence_numbers_is_shut_out) {
  Pair pair(4096);
  expect_traffic(pair);
  soft::TcpHello hello;  // as the true peer would say it, but for what it was told in private
  hello.requester = pair.one.qp->qp_num;
  hello.responder = pair.other.qp->qp_num;
  hello.request_psn = 1;
  hello.source = hello.destination = bytes_of(pair.other.coordinates().gid);
  const auto bytes = soft::encode(hello);
  CHECK(is_shut_on(pair.other.coordinates(), bytes.data(), bytes.size()));
  expect_traffic(pair);
}

TEST(a_thousand_silent_strangers_hold_up_nobody) {
  Pair pair(4096);
  const Coordinates door = pair.other.coordinates();
  const size_t before = open_descriptors();
  Child crowd([&](int in, int out) {
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 900; ++i) strangers.push_back(knock(door));
    CHECK_EQ(write(out, "x", 1), 1);
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
  });
  crowd.get<char>();
  CHECK(open_descriptors() < before + 300);
  Pair late(4096);
  expect_traffic(late);
  expect_traffic(pair);
  crowd.put('x');
  CHECK_EQ(crowd.exit_status(), 0);
}

TEST(large_and_small_keep_their_order_over_several_streams) {
  for (const int streams : {1, 4}) {
    set_streams(streams);
    Child child([](int in, int out) {
      End end(big);
      introduce(end, in, out);
      for (uint64_t i = 0; i < 40; ++i) CHECK_EQ(end.receive(0, 0, i), 0);
      bool good = true;
      for (unsigned round = 0; round < 40 && good; ++round) {
        const ibv_wc completion = end.next();
        // The write before the notification is in place, and the one after it is not waited for.
        good = completion.status == IBV_WC_SUCCESS && completion.wr_id == round && holds(end, 0, big, round);
        CHECK_EQ(write(out, &good, 1), 1);
      }
      char word;
      CHECK_EQ(read(in, &word, 1), 1);
    });
    End end(big);
    const Coordinates target = introduce(end, child);
    for (unsigned round = 0; round < 40; ++round) {
      fill(end, round);
      CHECK_EQ(end.post(IBV_WR_RDMA_WRITE, 0, big, &target), 0);
      CHECK_EQ(end.post(IBV_WR_SEND, 0, 0), 0);
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
      CHECK(child.get<bool>());
    }
    std::memset(end.memory, 0, end.size);
    CHECK_EQ(end.post(IBV_WR_RDMA_READ, 0, big, &target), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    CHECK(holds(end, 0, big, 39));
    child.put('x');
    CHECK_EQ(child.exit_status(), 0);
  }
  set_streams(1);
}

TEST(large_messages_both_ways_at_once) {
  for (const int streams : {1, 3}) {
    set_streams(streams);
    Pair pair(2 * big);
    fill(pair.one, 1);
    fill(pair.other, 2);
    std::array<std::jthread, 2> sides;
    std::atomic<int> failures{0};
    for (End* end : {&pair.one, &pair.other})
      sides[end == &pair.one] = std::jthread([end, &failures] {
        for (int i = 0; i < 4; ++i) failures += end->receive(big, big) != 0;
        for (int i = 0; i < 4; ++i) failures += end->post(IBV_WR_SEND, 0, big) != 0;
        for (int i = 0; i < 8; ++i) failures += end->next().status != IBV_WC_SUCCESS;
      });
    for (auto& side : sides) side.join();
    CHECK_EQ(failures.load(), 0);
    CHECK(std::memcmp(pair.one.memory, pair.other.memory + big, big) == 0);
    CHECK(std::memcmp(pair.other.memory, pair.one.memory + big, big) == 0);
  }
  set_streams(1);
}

TEST(a_region_goes_in_the_middle_of_a_large_transfer) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND})
    for (int round = 0; round < 4; ++round) {
      Pair pair(huge);
      expect_traffic(pair);
      const Coordinates target = pair.other.coordinates();
      if (opcode == IBV_WR_SEND) CHECK_EQ(pair.other.receive(0, huge), 0);
      CHECK_EQ(pair.one.post(opcode, 0, huge, &target), 0);
      std::jthread owner([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
        pair.other.verbs->dereg_mr(pair.other.mr);
        pair.other.mr = nullptr;
        std::vector<std::byte>().swap(pair.other.owned);  // an access after this is a use after free
      });
      const ibv_wc_status status = pair.one.next().status;
      owner.join();
      const ibv_wc_status failure = opcode == IBV_WR_SEND ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR;
      CHECK(status == failure || status == IBV_WC_SUCCESS);  // it may have been through by then
    }
}

TEST(the_requesters_region_goes_in_the_middle) {
  for (int round = 0; round < 4; ++round) {
    Pair pair(huge);
    expect_traffic(pair);
    const Coordinates target = pair.other.coordinates();
    CHECK_EQ(pair.one.post(round % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 0, huge, &target), 0);
    pair.one.verbs->dereg_mr(pair.one.mr);
    pair.one.mr = nullptr;
    std::vector<std::byte>().swap(pair.one.owned);
    CHECK_EQ(pair.one.next().status, IBV_WC_LOC_PROT_ERR);
  }
}

TEST(a_stopped_peer_is_waited_for) {
  Child child([](int in, int out) {
    End end(big);
    introduce(end, in, out);
    CHECK_EQ(end.receive(0, 0), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    const bool good = holds(end, 0, big, 3);
    CHECK_EQ(write(out, &good, 1), 1);
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
  });
  End end(big);
  const Coordinates target = introduce(end, child);
  fill(end, 3);
  CHECK_EQ(end.post(IBV_WR_RDMA_WRITE, 0, 64, &target), 0);
  CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
  child.signal(SIGSTOP);
  CHECK_EQ(end.post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, big, &target), 0);
  ibv_wc completion;
  // Longer than the time after which a host that does not answer is given up: this one's kernel does.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(6);
  while (std::chrono::steady_clock::now() < until) {
    CHECK_EQ(ibv_poll_cq(end.cq, 1, &completion), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  child.signal(SIGCONT);
  CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
  CHECK(child.get<bool>());
  child.put('x');
  CHECK_EQ(child.exit_status(), 0);
}

TEST(a_peer_is_killed_in_the_middle_of_a_large_message) {
  for (int round = 0; round < 5; ++round) {
    Child child([](int in, int out) {
      End end(big);
      introduce(end, in, out);
      CHECK_EQ(end.receive(0, big), 0);
      CHECK_EQ(write(out, "x", 1), 1);
      for (;;) {
        ibv_wc completion;
        ibv_poll_cq(end.cq, 1, &completion);
        end.receive(0, big);
      }
    });
    End end(big);
    introduce(end, child);
    child.get<char>();
    for (int i = 0; i < 50; ++i) CHECK_EQ(end.post(IBV_WR_SEND, 0, big), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    child.kill();
    const auto killed = std::chrono::steady_clock::now();
    ibv_wc_status status = IBV_WC_SUCCESS;
    while (status == IBV_WC_SUCCESS) status = end.next().status;
    CHECK_EQ(status, IBV_WC_RETRY_EXC_ERR);
    CHECK(std::chrono::steady_clock::now() - killed < std::chrono::seconds(2));
  }
}

TEST(a_forked_grandchild_hides_no_death) {
#ifdef __SANITIZE_THREAD__
  throw Skipped(
      "the thread sanitizer allows no threads in a child that was forked by one of several threads");
#endif
  pid_t grandchild = 0;
  {
    Child child([](int in, int out) {
      End end;
      introduce(end, in, out);
      CHECK_EQ(end.receive(0, 8), 0);
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
      const pid_t forked = fork();
      if (forked == 0)
        for (;;) pause();
      CHECK_EQ(write(out, &forked, sizeof forked), static_cast<ssize_t>(sizeof forked));
      for (;;) pause();
    });
    End end;
    introduce(end, child);
    CHECK_EQ(end.post(IBV_WR_SEND, 0, 8), 0);
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    grandchild = child.get<pid_t>();
    CHECK_EQ(end.receive(0, 8), 0);
    child.kill();
    CHECK_EQ(end.next().status, IBV_WC_WR_FLUSH_ERR);
  }
  kill(grandchild, SIGKILL);
}

TEST(every_process_has_a_port_of_its_own) {
  Child child([](int in, int out) {
    End there(4096);
    CHECK_EQ(write(out, &there.qp->qp_num, 4), 4);
    char word;
    CHECK_EQ(read(in, &word, 1), 1);
  });
  const auto number = child.get<uint32_t>();
  End here(4096);
  CHECK(number >> 16 != here.qp->qp_num >> 16);
  child.put('x');
  CHECK_EQ(child.exit_status(), 0);
}

TEST(queue_pair_numbers_come_round_again) {
  End anchor(64);
  uint32_t last = 0;
  for (int i = 0; i < many; ++i) {
    ibv_qp_init_attr initial{};
    initial.send_cq = initial.recv_cq = anchor.cq;
    initial.qp_type = IBV_QPT_RC;
    initial.cap = {1, 1, 1, 1, 0};
    ibv_qp* qp = anchor.verbs->create_qp(anchor.pd, &initial);
    CHECK(qp != nullptr);
    CHECK(qp->qp_num != anchor.qp->qp_num && qp->qp_num != last);
    CHECK_EQ(qp->qp_num >> 16, anchor.qp->qp_num >> 16);
    last = qp->qp_num;
    anchor.verbs->destroy_qp(qp);
  }
}

RDMATX_TEST_MAIN()
