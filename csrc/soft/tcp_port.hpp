#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "soft/sockets.hpp"
#include "soft/tcp_messages.hpp"
#include "soft/tcp_stream.hpp"

namespace rdmatx::soft {

class Instance;
struct QueuePair;

/// A listening socket on one of this host's addresses. Closed with its last user.
class TcpListener {
 public:
  TcpListener(Socket socket, uint64_t token) : socket_(std::move(socket)), token_(token) {}
  const Socket& socket() const noexcept { return socket_; }
  uint64_t token() const noexcept { return token_; }

 private:
  Socket socket_;
  uint64_t token_;
};

/// The ports that RDMATX_SOFT_PORTS=FIRST-LAST names.
struct PortRange {
  uint16_t first = 61000, last = 61255;
  /// Nothing where the text is no range of at most 256 ports.
  static std::optional<PortRange> parse(const char* text);
};

/// The process's TCP port and everything on it that is not yet, or no longer, a queue pair's: sockets that
/// listen, that are being connected, whose hello is awaited, and that are being left.
///
/// A process holds one port of a fixed range. Which one is the upper byte of its queue pair numbers, so that
/// a GID and a queue pair number say where to connect to. The port is held by the name of an abstract socket,
/// which is as unique in a network namespace as a port is; sockets listen only while queue pairs need them,
/// and only on those queue pairs' addresses.
///
/// The wire's thread does the work; what other threads may call says so.
class TcpPort {
 public:
  TcpPort(Instance& instance, int epoll);
  ~TcpPort();
  TcpPort(const TcpPort&) = delete;
  TcpPort& operator=(const TcpPort&) = delete;

  /// The upper byte of queue pair numbers. Any thread.
  uint32_t slot() const noexcept { return slot_.value_or(255); }
  /// A listening socket on `address`. Null and an errno where there is none to be had. Any thread.
  std::shared_ptr<TcpListener> listen(const ibv_gid& address, int* error);
  /// Connects the queue pair to its peer, as long as it takes. Any thread, under the queue pair's mutex.
  void connect(const QueuePair& qp);
  /// Sends the rest, then waits for the other side to close, for a bounded time. Any thread.
  void linger(Socket socket, std::vector<std::byte> unsent);
  /// A socket of a queue pair, watched by the wire's thread where the stream asks for it. Any thread.
  std::unique_ptr<TcpStream> adopt(Socket socket);
  int epoll() const noexcept { return epoll_; }
  int streams() const noexcept { return streams_; }
  uint64_t peer_timeout_ns() const noexcept { return peer_timeout_ns_; }

  static constexpr uint64_t token_bit = uint64_t{1} << 61;
  void handle_event(uint64_t token);
  /// Does what is due. Returns when to be called again at the latest, in milliseconds; -1 for never.
  int work();
  /// Nothing is being left any more.
  bool at_rest();

  // Bounds on what strangers can make this process hold.
  static constexpr size_t max_half_open = 256, max_waiting = 1024, max_lingering = 1024;

 private:
  struct Arrival {  // accepted; its hello is read, and then its queue pair is awaited
    Socket socket;
    std::array<std::byte, TcpHello::encoded_bytes> bytes;
    size_t count = 0;
    uint64_t deadline_ns = 0;
    std::optional<TcpHello> hello;
  };
  struct Departure {  // a connection to a peer that is being made
    struct Stream {
      Socket socket;
      uint64_t token = 0;
      enum { connecting, greeting, welcome } phase = connecting;
      std::array<std::byte, ResponseFrame::encoded_bytes> bytes;
      size_t count = 0;
    };
    TcpHello hello;
    uint32_t incarnation = 0;
    std::vector<Stream> streams;  // empty between two attempts
    uint64_t next_ns = 0, pause_ns = 0, deadline_ns = 0;
    bool over = false;
  };
  struct Leaver {
    Socket socket;
    std::vector<std::byte> unsent;
    size_t sent = 0;
    uint64_t deadline_ns = 0;
    bool shut = false;
  };

  void reserve();
  uint64_t next_token() noexcept { return token_bit | next_token_.fetch_add(1); }
  bool watch(int fd, uint64_t token, uint32_t events) const;
  void tune(const Socket& socket) const;

  // tcp_arrivals.cpp
  void accept_from(const std::shared_ptr<TcpListener>& listener);
  bool read_hello(Arrival& arrival);
  bool admit(uint64_t token);
  void admit_all();
  void make_room();

  // tcp_departures.cpp
  void start(Departure& departure);
  void proceed(Departure& departure, Departure::Stream& stream);
  void finish(Departure& departure);
  void retry(Departure& departure, bool no_way);
  bool still_wanted(const Departure& departure);
  void abandon(Departure& departure);

  bool leave(Leaver& leaver);
  void take_requests();
  void check_hosts(uint64_t now);

  Instance& instance_;
  const int epoll_;
  PortRange range_;
  int streams_;
  uint64_t peer_timeout_ns_;
  std::string congestion_;
  Socket reservation_;
  std::optional<uint32_t> slot_;
  std::atomic<uint64_t> next_token_{1};

  std::mutex mutex_;  // guards these
  std::unordered_map<uint64_t, std::weak_ptr<TcpListener>> listeners_;
  std::unordered_map<uint64_t, std::shared_ptr<std::atomic<uint32_t>>> watched_;
  size_t purge_at_ = 64;
  std::vector<Departure> new_departures_;
  std::vector<Leaver> new_leavers_;

  // The thread's own.
  std::unordered_map<uint64_t, Arrival> arrivals_;
  std::vector<Departure> departures_;
  std::unordered_map<uint64_t, Leaver> leavers_;
  uint64_t accept_again_ns_ = 0, hosts_checked_ns_ = 0;
};

}  // namespace rdmatx::soft
