#pragma once

#include <sys/epoll.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "soft/sockets.hpp"
#include "soft/tcp_messages.hpp"

namespace rdmatx::soft {

/// What a call that never waits came to.
enum class Flow {
  moved,
  blocked,  ///< nothing there now, or no room
  closed,   ///< the other side is gone, in good order or not
  invalid,  ///< the memory of what was to be sent may no longer be read
};

/// A frame that waits to be sent: its header, and where its payload lies.
struct Outgoing {
  std::array<std::byte, RequestFrame::encoded_bytes> header{};
  uint32_t header_bytes = 0;
  uint32_t key = 0;      ///< as responder: of the region the payload lies in
  uint64_t payload = 0;  ///< bytes
  uint64_t message = 0;  ///< as requester: what it is a piece of
  uint64_t place = 0;    ///< as requester: the offset in the message; as responder: the address
  uint64_t sent = 0;     ///< of header and payload together
};

/// One connected TCP socket that carries frames both ways without ever waiting. Payload goes straight from
/// and to the memory it belongs to; a small buffer takes in what arrives together with a header. Called under
/// the queue pair's mutex.
class TcpStream {
 public:
  /// Small messages that arrive together are taken in by one call.
  static constexpr size_t buffer_bytes = 16 * 1024;
  /// Gives the memory of a part of a frame's payload; false where that may not be read (any more).
  using Resolve = std::function<bool(const Outgoing&, uint64_t offset, uint64_t bytes, std::vector<iovec>&)>;

  TcpStream(Socket socket, uint64_t token, std::shared_ptr<std::atomic<uint32_t>> armed)
      : socket_(std::move(socket)), token_(token), armed_(std::move(armed)) {}

  std::span<const std::byte> buffered() const { return {buffer_.get() + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += bytes; }
  /// Takes in more behind what is buffered.
  Flow fill();
  /// Moves payload into `pieces`, from the buffer first. What follows the payload lands in the buffer.
  Flow read_into(std::vector<iovec>& pieces, uint64_t* moved);

  /// Sends what is queued, up to `budget` bytes.
  Flow flush(uint64_t budget, const Resolve& resolve);
  void push(const RequestFrame& frame, uint64_t payload);
  void push(const ResponseFrame& frame, uint64_t address = 0, uint32_t key = 0);
  /// What is queued and has no payload, as bytes: for whoever finishes sending after the queue pair let go.
  /// False where a payload is under way, which nobody can finish. With `begun_only`, what has not begun to be
  /// sent never will be.
  bool take_unsent(std::vector<std::byte>& bytes, bool begun_only);
  uint64_t unsent_bytes() const;

  /// Has the kernel tell the wire's thread once, when something comes or, where that is waited for, there is
  /// room. Nothing while what came waits here.
  void arm(int epoll);
  /// For whoever polls, and so looks at the socket anyway. True where it was armed.
  bool disarm() noexcept { return armed_->load() != 0 && armed_->exchange(0) != 0; }
  /// The kernel would have told if anything had come.
  bool quiet() const noexcept { return (armed_->load(std::memory_order_acquire) & EPOLLIN) != 0; }
  /// The kernel has told that something came, or that there is room.
  bool roused() const noexcept { return armed_->load(std::memory_order_acquire) == told; }
  static constexpr uint32_t told = 1u << 27;  // no event of epoll's
  void close() noexcept { socket_.close(); }
  bool closed() const noexcept { return !socket_; }
  Socket take_socket() noexcept { return std::move(socket_); }
  const Socket& socket() const noexcept { return socket_; }

  std::deque<Outgoing> outgoing;
  // What is being taken in.
  std::optional<RequestFrame> request;
  std::optional<ResponseFrame> response;
  uint64_t payload_done = 0;
  bool waits = false;  // the frame at hand cannot be executed yet
  bool left = false;   // the other side said goodbye

 private:
  void prepare_buffer();

  Socket socket_;
  uint64_t token_;
  // The events the kernel was asked for; the wire's thread makes it `told` when one came.
  std::shared_ptr<std::atomic<uint32_t>> armed_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;
};

using TcpStreams = std::vector<std::unique_ptr<TcpStream>>;

}  // namespace rdmatx::soft
