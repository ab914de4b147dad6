#include <pybind11/pybind11.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"

// The best that two processes of one host can do without any protocol, for benchmarks to compare with: no
// tags, no completion, no regard for who else wants the processor.

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

/// Shared by the two processes, at the start of memory that both have mapped. Counts only grow.
struct Board {
  static constexpr uint64_t slots = 8;
  static constexpr uint64_t slot_bytes = 64 * 1024;
  static constexpr uint64_t header_bytes = 4096;
  static constexpr uint64_t total_bytes = header_bytes + slots * slot_bytes;

  alignas(64) std::atomic<uint64_t> filled;        // slots of the ring, by the sender
  alignas(64) std::atomic<uint64_t> emptied;       // by the receiver
  alignas(64) std::atomic<uint64_t> halves[2][8];  // copied, by either side; each on a cache line of its own
};
static_assert(sizeof(Board) <= Board::header_bytes);

Board& board_of(const py::buffer_info& memory) {
  if (static_cast<uint64_t>(memory.size * memory.itemsize) < Board::total_bytes)
    throw UsageError("the board takes " + std::to_string(Board::total_bytes) + " bytes");
  return *static_cast<Board*>(memory.ptr);
}

/// Spins until `count` has come up to `value`; long waits let others have the processor.
void await(const std::atomic<uint64_t>& count, uint64_t value) {
  using Clock = std::chrono::steady_clock;
  constexpr int spins = 20'000;
  Clock::time_point give_up{};
  while (count.load(std::memory_order_acquire) < value) {
    for (int i = 0; i < spins; ++i) {
      if (count.load(std::memory_order_acquire) >= value) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::this_thread::yield();
    if (give_up == Clock::time_point{}) give_up = Clock::now() + std::chrono::seconds(30);
    if (Clock::now() > give_up)
      throw TimeoutError("the other process did not go on for 30 s", "", "copy", 30);
  }
}

std::byte* slot(Board& board, uint64_t number) {
  return reinterpret_cast<std::byte*>(&board) + Board::header_bytes +
         number % Board::slots * Board::slot_bytes;
}

/// Both sides of the ring: `copy` moves one piece between its slot and the message.
template <class Copy>
void over_pieces(uint64_t bytes, uint64_t count, Copy copy) {
  for (uint64_t message = 0; message < count; ++message)
    for (uint64_t offset = 0; offset < bytes; offset += Board::slot_bytes)
      copy(offset, std::min(bytes - offset, Board::slot_bytes));
}

void ring_send(const py::buffer& board_memory, const py::buffer& source, uint64_t count) {
  const py::buffer_info shared = board_memory.request(true), data = source.request();
  Board& board = board_of(shared);
  const GilReleased released;
  uint64_t at = board.filled.load();
  over_pieces(data.size * data.itemsize, count, [&](uint64_t offset, uint64_t bytes) {
    if (at >= Board::slots) await(board.emptied, at - Board::slots + 1);
    std::memcpy(slot(board, at), static_cast<const std::byte*>(data.ptr) + offset, bytes);
    board.filled.store(++at, std::memory_order_release);
  });
  await(board.emptied, at);
}

void ring_receive(const py::buffer& board_memory, const py::buffer& target, uint64_t count) {
  const py::buffer_info shared = board_memory.request(true), data = target.request(true);
  Board& board = board_of(shared);
  const GilReleased released;
  uint64_t at = board.emptied.load();
  over_pieces(data.size * data.itemsize, count, [&](uint64_t offset, uint64_t bytes) {
    await(board.filled, at + 1);
    std::memcpy(static_cast<std::byte*>(data.ptr) + offset, slot(board, at), bytes);
    board.emptied.store(++at, std::memory_order_release);
  });
}

/// One side's half of each message: the first is written by the sender, the second read by the receiver.
void copy_half(const py::buffer& board_memory, const py::buffer& memory, int pid, uint64_t remote, bool sends,
               uint64_t count, uint64_t window) {
  const py::buffer_info shared = board_memory.request(true), data = memory.request(!sends);
  Board& board = board_of(shared);
  const GilReleased released;
  const uint64_t bytes = data.size * data.itemsize, middle = (bytes + 1) / 2;
  const uint64_t begin = sends ? 0 : middle, end = sends ? middle : bytes;
  std::atomic<uint64_t>& own = board.halves[sends ? 0 : 1][0];
  const std::atomic<uint64_t>& other = board.halves[sends ? 1 : 0][0];
  const uint64_t before = own.load();
  for (uint64_t done = before; done < before + count;) {
    if (done >= window) await(other, done - window + 1);
    for (uint64_t at = begin; at < end;) {
      iovec here{static_cast<std::byte*>(data.ptr) + at, end - at};
      iovec there{reinterpret_cast<void*>(remote + at), end - at};
      const ssize_t moved = sends ? process_vm_writev(pid, &here, 1, &there, 1, 0)
                                  : process_vm_readv(pid, &here, 1, &there, 1, 0);
      if (moved <= 0)
        throw Error("the kernel refused the copy: " + describe_errno(moved < 0 ? errno : EFAULT));
      at += static_cast<uint64_t>(moved);
    }
    own.store(++done, std::memory_order_release);
  }
  await(other, before + count);
}

}  // namespace

void bind_raw_copies(py::module_& testing) {
  testing.attr("BOARD_BYTES") = Board::total_bytes;
  testing.def(
      "ring_send", &ring_send, py::arg("board"), py::arg("source"), py::arg("count"),
      "Sends `source` `count` times through the ring of `board`: zeroed memory of BOARD_BYTES that both "
      "processes have mapped. Returns when the other has taken all of it.");
  testing.def("ring_receive", &ring_receive, py::arg("board"), py::arg("target"), py::arg("count"),
              "Receives into `target`, `count` times, what the other process sends with ring_send().");
  testing.def(
      "copy_half", &copy_half, py::arg("board"), py::arg("memory"), py::arg("pid"), py::arg("remote"),
      py::arg("sends"), py::arg("count"), py::arg("window"),
      "Copies this side's half of a message `count` times between `memory` and as much at the address "
      "`remote` of process `pid`, which does the same with the other half, at most `window` messages "
      "ahead of it.");
}

}  // namespace rdmatx::bindings
