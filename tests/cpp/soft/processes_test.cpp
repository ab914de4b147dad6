// Two processes of one host. Runs twice: as the kernel allows, and with shared memory alone
// (RDMATX_SOFT_WIRE=shm), where every byte goes through the ring.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <utility>

#include "soft/ends.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

/// A child process at the other end of two pipes. Ended by the destructor.
class Child {
 public:
  explicit Child(const std::function<void(int in, int out)>& body) {
    CHECK(pipe(to_child_) == 0 && pipe(from_child_) == 0);
    pid_ = fork();
    // Each keeps its own ends, so that the death of one is the end of the other's reading.
    for (int* end :
         pid_ == 0 ? std::array{&to_child_[1], &from_child_[0]} : std::array{&to_child_[0], &from_child_[1]})
      close(std::exchange(*end, -1));
    if (pid_ == 0) {
      int status = 0;
      try {
        body(to_child_[0], from_child_[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        status = 1;
      }
      _exit(status);
    }
  }
  ~Child() {
    if (pid_ > 0) kill();
    for (const int fd : {to_child_[0], to_child_[1], from_child_[0], from_child_[1]})
      if (fd >= 0) close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  template <class T>
  void put(const T& value) const {
    CHECK_EQ(write(to_child_[1], &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T get() const {
    T value{};
    CHECK_EQ(read(from_child_[0], &value, sizeof value), static_cast<ssize_t>(sizeof value));
    return value;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int exit_status() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  int to_child_[2], from_child_[2];
  pid_t pid_;
};

Coordinates introduce(End& end, int in, int out) {
  const Coordinates own = end.coordinates();
  Coordinates other{};
  CHECK_EQ(write(out, &own, sizeof own), static_cast<ssize_t>(sizeof own));
  CHECK_EQ(read(in, &other, sizeof other), static_cast<ssize_t>(sizeof other));
  end.connect(other);
  return other;
}

Coordinates introduce(End& end, const Child& child) {
  const auto other = child.get<Coordinates>();
  child.put(end.coordinates());
  end.connect(other);
  return other;
}

void fill(End& end, unsigned seed) {
  for (size_t i = 0; i < end.size; ++i) end.memory[i] = static_cast<std::byte>(i * 7 + i / 4096 + seed);
}

bool holds(const End& end, size_t offset, size_t bytes, unsigned seed) {
  for (size_t i = offset; i < offset + bytes; ++i)
    if (end.memory[i] != static_cast<std::byte>(i * 7 + i / 4096 + seed)) return false;
  return true;
}

constexpr size_t big = 12'345'678;

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
    introduce(end, child);
    CHECK_EQ(end.receive(0, 16, 1), 0);
    for (uint64_t i = 2; i < 5; ++i) CHECK_EQ(end.post(IBV_WR_SEND, 0, 100'000, nullptr, 0, i), 0);
    if (round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    child.kill();
    const auto killed = std::chrono::steady_clock::now();
    for (uint64_t i = 2; i < 5; ++i) {
      const ibv_wc completion = end.next();
      CHECK_EQ(completion.wr_id, i);
      CHECK_EQ(completion.status, i == 2 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
    }
    CHECK_EQ(end.next().status, IBV_WC_WR_FLUSH_ERR);
    CHECK(std::chrono::steady_clock::now() - killed < std::chrono::seconds(1));
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
