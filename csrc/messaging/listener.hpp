#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "messaging/establish.hpp"
#include "messaging/half_open.hpp"
#include "messaging/progress.hpp"

namespace rdmatx {

/// What became of those who knocked. `half_open` and `waiting` are as of now, the others since the start.
struct ListenerStats {
  uint64_t accepted = 0;               ///< finished their handshake
  uint64_t refused = 0;                ///< said what is no handshake, or could not be connected
  uint64_t failed_authentication = 0;  ///< did not prove the secret
  uint64_t timed_out = 0;              ///< did not finish in time
  uint64_t shut_out = 0;               ///< were quiet while others waited for the place
  uint64_t gave_up = 0;                ///< closed before they had finished
  uint64_t half_open = 0;              ///< handshakes going on
  uint64_t waiting = 0;                ///< finished, and nobody called accept() for them
};

/// Takes connections at an address. A thread of its own does the handshakes, so that connect() returns before
/// accept() is called, and one thread can do both. What is malformed closes that socket and nothing else.
///
/// With a secret a stranger proves it before anything is made or told for it. At most 256 handshakes are half
/// done at a time (fewer where the process may not have 1,024 descriptors), each for at most ten seconds; who
/// makes room when more knock, half_open.hpp says. Once 1,024 connections wait for accept(), handshakes that
/// go on are finished, and strangers wait in the kernel's queue.
///
/// Owns the listening socket, the thread, and the connections that nobody accepted yet. Thread-safe.
class RDMATX_API Listener {
 public:
  Listener(std::shared_ptr<ContextResources> resources, const std::string& address, SharedSecret secret);
  ~Listener();

  /// "127.0.0.1:41234": what a peer connects to, with the port that was chosen.
  const std::string& address() const noexcept { return address_; }
  /// The next connection that finished its handshake. Throws TimeoutError, ClosedError.
  std::shared_ptr<Connection> accept(std::optional<double> timeout);
  /// The same, if there is one now; else null. Throws ClosedError.
  std::shared_ptr<Connection> try_accept();
  /// What its waits make progress on.
  const std::shared_ptr<Progress>& progress_of_context() const noexcept { return waiting_.progress; }
  ListenerStats stats() const noexcept;
  /// Stops listening and closes what was not accepted. Idempotent.
  void close();
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  using Clock = Deadline::Clock;

  /// Counts one more until it ends.
  class Presence {
   public:
    explicit Presence(std::atomic<uint64_t>& count) noexcept : count_(&count) { ++count; }
    Presence(Presence&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Presence& operator=(Presence&&) = delete;
    ~Presence() { end(); }
    void end() noexcept {
      if (auto* count = std::exchange(count_, nullptr)) --*count;
    }

   private:
    std::atomic<uint64_t>* count_;
  };

  // A handshake that is half done.
  struct Half {
    BootstrapSocket socket;
    std::string peer;
    Source source;
    Deadline deadline;
    Presence counted;
    Clock::time_point heard = Clock::now();
    HandshakeStage stage = HandshakeStage::silent;
    std::unique_ptr<Endpoint> endpoint = {};  // once the peer's hello was answered
  };
  using Halves = std::list<Half>;

  struct Counters {
    std::atomic<uint64_t> accepted{0}, refused{0}, failed_authentication{0}, timed_out{0}, shut_out{0},
        gave_up{0}, half_open{0};
  };

  static constexpr size_t most_waiting = 1024;
  bool full() const noexcept { return ready_count_.load(std::memory_order_acquire) >= most_waiting; }

  // Of the thread.
  void run();
  bool takes_new(const Halves& halves) const;
  static std::optional<size_t> who_may_go(const Halves& halves);
  void take_new(Halves& halves);
  void out_of_descriptors(int code, Halves& halves);
  /// Shuts out one that others wait for; false where nobody deserves it.
  bool make_room(Halves& halves);
  /// Whether the handshake goes on; where not, its socket was told and counted.
  bool goes_on(Half& half, bool heard);
  bool advance(Half& half);
  void handle(Half& half, const BootstrapSocket::Record& record);
  void challenge(Half& half, const BootstrapSocket::Record& record);
  void answer(Half& half, const BootstrapSocket::Record& record);
  void deliver(std::shared_ptr<Connection> connection);

  const Waiting waiting_;
  std::shared_ptr<ContextResources> resources_;  // of the thread; given up when closed
  const SharedSecret secret_;
  UniqueFd socket_;
  UniqueFd wake_;  // under the lock, but for the thread's reading
  std::string address_;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::deque<std::shared_ptr<Connection>> ready_;
  std::atomic<size_t> ready_count_{0};
  Counters counters_;
  Clock::time_point paused_until_{};  // of the thread: no descriptor is left for new ones
  Clock::time_point warned_at_{};
  std::mutex close_mutex_;
  std::unique_ptr<ServiceThread> thread_;  // last: it uses all of the above
};

}  // namespace rdmatx
