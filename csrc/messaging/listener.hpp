#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "messaging/establish.hpp"
#include "messaging/progress.hpp"

namespace rdmatx {

/// Takes connections at an address. A thread of its own does the handshakes, so that connect() returns before
/// accept() is called, and one thread can do both. What is malformed closes that socket and nothing else; at
/// most 64 handshakes are half done at a time, each for at most ten seconds.
///
/// Owns the listening socket, the thread, and the connections that nobody accepted yet. Thread-safe.
class RDMATX_API Listener {
 public:
  Listener(std::shared_ptr<ContextResources> resources, const std::string& address);
  ~Listener();

  /// "127.0.0.1:41234": what a peer connects to, with the port that was chosen.
  const std::string& address() const noexcept { return address_; }
  /// The next connection that finished its handshake. Throws TimeoutError, ClosedError.
  std::shared_ptr<Connection> accept(std::optional<double> timeout);
  /// Stops listening and closes what was not accepted. Idempotent.
  void close();
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  // A handshake that is half done.
  struct Half {
    BootstrapSocket socket;
    std::string peer;
    Deadline deadline;
    std::unique_ptr<Endpoint> endpoint;  // once the peer's hello was answered
  };

  void run();
  void take_new(std::list<Half>& halves);
  /// True while the handshake goes on.
  bool advance(Half& half);
  void answer(Half& half, const BootstrapSocket::Record& record);
  void deliver(std::shared_ptr<Connection> connection);

  const Waiting waiting_;
  std::shared_ptr<ContextResources> resources_;  // of the thread; given up when closed
  UniqueFd socket_;
  UniqueFd wake_;
  std::string address_;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::deque<std::shared_ptr<Connection>> ready_;
  std::atomic<size_t> ready_count_{0};
  std::mutex close_mutex_;
  std::unique_ptr<ServiceThread> thread_;  // last: it uses all of the above
};

}  // namespace rdmatx
