// How fast is the software HCA over TCP, against one plain socket? For bench/p2p_tcp.py, which says what is
// measured; one JSON object a line.
//
//   bench_soft_tcp [SIZE…]        bytes an operation; 64 KiB, 1 MiB, 16 MiB, 64 MiB without
//
// Two processes. In turn, over the same memory: blocking sockets, RDMA WRITE, SEND and receive.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "soft/child.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr int rounds = 7;
constexpr double round_seconds = 0.25;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

enum class Way : int { socket_default, socket_reno, write, send, end };
constexpr const char* names[] = {"socket", "socket_reno", "write", "send"};

/// What the sender tells the receiver before each round.
struct Job {
  Way way;
  uint64_t bytes;
  int operations;
};

void push_all(int socket, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, data, bytes, MSG_NOSIGNAL);
    CHECK(sent > 0);
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void pull_all(int socket, std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, data, bytes, MSG_WAITALL);
    CHECK(got > 0);
    data += got;
    bytes -= static_cast<size_t>(got);
  }
}

void use_reno(int socket) {
  CHECK_EQ(setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
}

/// A listening socket on the loopback interface, with its address.
UniqueFd listening(sockaddr_in& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(socket.get(), 2) == 0);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return socket;
}

/// So many at once, from and to one block: enough to hide the way there and back.
int window(uint64_t bytes) {
  return static_cast<int>(std::clamp<uint64_t>((4 << 20) / bytes, 2, 64));
}

void receive_job(End& end, const Job& job, int socket) {
  if (job.way == Way::socket_default || job.way == Way::socket_reno) {
    for (int i = 0; i < job.operations; ++i) pull_all(socket, end.memory, job.bytes);
    char done = 1;
    push_all(socket, reinterpret_cast<std::byte*>(&done), 1);
    return;
  }
  const bool sends = job.way == Way::send;
  int posted = 0;
  const auto post = [&] {
    CHECK_EQ(end.receive(0, sends ? static_cast<uint32_t>(job.bytes) : 0), 0);
    ++posted;
  };
  const int messages = sends ? job.operations : 1;  // of writes the last one notifies
  while (posted < std::min(messages, 2 * window(job.bytes))) post();
  for (int i = 0; i < messages; ++i) {
    CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    if (posted < messages) post();
  }
}

void receiver(int in, int out, size_t largest) {
  End end(largest);
  introduce(end, in, out);
  UniqueFd sockets[2];
  for (UniqueFd& socket : sockets) {
    sockaddr_in address{};
    CHECK_EQ(read(in, &address, sizeof address), static_cast<ssize_t>(sizeof address));
    socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (&socket == &sockets[1]) use_reno(socket.get());
    CHECK_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  for (;;) {
    Job job{};
    CHECK_EQ(read(in, &job, sizeof job), static_cast<ssize_t>(sizeof job));
    if (job.way == Way::end) return;
    receive_job(end, job, sockets[job.way == Way::socket_reno].get());
    const uint64_t sum =
        static_cast<uint64_t>(end.memory[0]) + static_cast<uint64_t>(end.memory[job.bytes - 1]);
    CHECK_EQ(write(out, &sum, sizeof sum), static_cast<ssize_t>(sizeof sum));
  }
}

/// Sends a round; the seconds it took, until the other side has it all.
double send_job(End& end, const Job& job, int socket, const Coordinates& target, const Child& child) {
  const double began = now();
  if (job.way == Way::socket_default || job.way == Way::socket_reno) {
    for (int i = 0; i < job.operations; ++i) push_all(socket, end.memory, job.bytes);
    std::byte done;
    pull_all(socket, &done, 1);
  } else {
    int posted = 0;
    const int depth = window(job.bytes);
    for (int completed = 0; completed < job.operations; ++completed) {
      while (posted < job.operations && posted - completed < depth) {
        const bool last = ++posted == job.operations;
        const ibv_wr_opcode opcode =
            job.way == Way::send ? IBV_WR_SEND : (last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
        CHECK_EQ(end.post(opcode, 0, static_cast<uint32_t>(job.bytes), &target), 0);
      }
      CHECK_EQ(end.next().status, IBV_WC_SUCCESS);
    }
  }
  const double took = now() - began;
  const auto sum = child.get<uint64_t>();
  CHECK_EQ(sum, static_cast<uint64_t>(end.memory[0]) + static_cast<uint64_t>(end.memory[job.bytes - 1]));
  return took;
}

void measure(uint64_t bytes, End& end, const Coordinates& target, const Child& child,
             const UniqueFd (&sockets)[2]) {
  std::vector<double> rates[4];
  int operations[4] = {2, 2, 2, 2};
  for (int round = -2; round < rounds; ++round)  // the first two find out how many operations make a round
    for (int way = 0; way < 4; ++way) {
      const Job job{static_cast<Way>(way), bytes, operations[way]};
      end.memory[0] = static_cast<std::byte>(round);
      end.memory[bytes - 1] = static_cast<std::byte>(way + 5 * round);
      child.put(job);
      const double took = send_job(end, job, sockets[way == 1].get(), target, child);
      const double rate = static_cast<double>(bytes) * job.operations / took / 1e9;
      if (round < 0)
        operations[way] = std::max(2, static_cast<int>(job.operations * round_seconds / took));
      else
        rates[way].push_back(rate);
    }
  std::string line = "{\"bytes\": " + std::to_string(bytes);
  for (int way = 0; way < 4; ++way) {
    std::sort(rates[way].begin(), rates[way].end());
    line += std::string(", \"") + names[way] + "\": " + std::to_string(rates[way][rounds / 2]);
  }
  std::printf("%s}\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  setenv("RDMATX_SOFT_WIRE", "tcp", 1);
  std::vector<uint64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::stoull(argv[i]));
  if (sizes.empty()) sizes = {64 << 10, 1 << 20, 16 << 20, 64 << 20};
  const size_t largest = *std::max_element(sizes.begin(), sizes.end());
  Child child([&](int in, int out) { receiver(in, out, largest); });
  End end(largest);
  const Coordinates target = introduce(end, child);
  UniqueFd sockets[2];
  for (UniqueFd& socket : sockets) {
    sockaddr_in address;
    const UniqueFd listener = listening(address);
    if (&socket == &sockets[1]) use_reno(listener.get());
    child.put(address);
    socket = UniqueFd(accept(listener.get(), nullptr, nullptr));
    CHECK(socket.get() >= 0);
  }
  for (const uint64_t bytes : sizes) measure(bytes, end, target, child, sockets);
  child.put(Job{Way::end, 0, 0});
  return child.exit_status();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
