#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/export.hpp"
#include "base/unique_fd.hpp"
#include "messaging/deadline.hpp"
#include "rdma/completion_queue.hpp"

namespace rdmatx {

class EventWatch;

/// Called at least ten times a second by every thread that waits here, with no lock held. It may throw, which
/// ends the wait: that is how a Ctrl-C gets out. Null: nothing is called. Set once, by the bindings.
RDMATX_API void set_interrupt_check(void (*check)());
void check_interrupt();

/// What waiting drives forward: a connection. All functions may be called from any thread.
class Progressing {
 public:
  virtual ~Progressing() = default;
  /// Handles what has completed; true where something had. Where another thread is at it, returns at once.
  virtual bool progress() noexcept = 0;
  /// Looks whether the peer still lives.
  virtual void check_peer() noexcept = 0;
  /// Asks for an event at the next completion, unless one is due already.
  virtual void arm() noexcept = 0;
  /// The event asked for came.
  virtual void event_came() noexcept = 0;
  /// Whether work goes on that needs this thread's polling to be fast.
  virtual bool wants_polling() const noexcept = 0;
  /// An operation waits for work of a GPU, which no descriptor tells of.
  virtual bool waits_for_gpu() const noexcept { return false; }
  /// Whether the queue is one of its own.
  virtual bool owns(const CompletionQueue* queue) const noexcept = 0;
  /// Close is about to be called: what the peer does from now on is no failure.
  virtual void expect_close() = 0;
  virtual void close() = 0;
};

/// How the threads of a context wait: whoever waits makes progress, for all its connections. A wait spins
/// briefly (RDMATX_SPIN_US), then yields the processor between looks, then sleeps on the completion channels
/// and the bootstrap sockets. Of several threads that sleep, one watches the descriptors and the others wait
/// to be told.
///
/// Owns the watch over the completion channels and the list of connections (weakly). Thread-safe; holds no
/// lock while it calls a connection or sleeps.
class Progress {
 public:
  using List = std::vector<std::weak_ptr<Progressing>>;

  explicit Progress(std::vector<std::shared_ptr<CompletionChannel>> events);

  void add(const std::shared_ptr<Progressing>& connection, int socket);
  void remove(const Progressing* connection, int socket) noexcept;
  std::shared_ptr<const List> connections() const;
  /// Stops watching a socket on which nothing more will come.
  void unwatch(int socket) noexcept;

  /// Waits until `done()`; false where the deadline passed first. `first`, which may be null, is looked at
  /// most often. Throws what the interrupt check throws.
  bool wait(Progressing* first, const std::function<bool()>& done, const Deadline& deadline);

  /// Gives the completion channel and all descriptors up; threads that still wait go on without them.
  void stop() noexcept;

  /// Something finished that a sleeping thread may wait for. Cheap where none sleeps.
  void wake() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_sleepers();
  }

 private:
  friend class EventWatch;
  // What a sleeping thread watches; it keeps its share over a stop().
  struct Watch {
    std::vector<std::shared_ptr<CompletionChannel>> events;
    UniqueFd sockets;  // an epoll of the bootstrap sockets
    UniqueFd wake;
    UniqueFd epoll;  // of all the above
  };

  bool look(Progressing* first, bool all);
  void look_at_peers();
  bool peers_are_due(Deadline::Clock::time_point now) noexcept;
  bool sleep(Progressing* first, const std::function<bool()>& done, const Deadline& deadline);
  void watch_descriptors(Watch& watch, double seconds);
  void take_events(CompletionChannel& events);
  void wake_sleepers() noexcept;
  bool waits_for_gpu() const;
  void arm_all();
  std::shared_ptr<Watch> add(EventWatch* watch);
  void remove(EventWatch* watch) noexcept;

  mutable std::mutex list_mutex_;
  std::shared_ptr<const List> connections_;
  std::atomic<size_t> count_{0};
  std::atomic<Deadline::Clock::rep> peers_checked_{0};  // when; by whichever thread

  std::mutex sleep_mutex_;
  std::shared_ptr<Watch> watch_;  // null once stopped
  std::condition_variable woken_;
  std::vector<EventWatch*> event_watches_;  // under sleep_mutex_
  std::atomic<int> sleepers_{0};            // event watches among them
  bool watched_ = false;                    // one of the sleepers watches the descriptors
  uint64_t wake_number_ = 0;                // under sleep_mutex_
};

/// A thread of the library, for what cannot wait until a user's thread comes along. Blocks all signals.
/// Joined by its destructor, except in a forked child, which has no such thread, and on the thread itself.
class ServiceThread {
 public:
  explicit ServiceThread(std::function<void()> body);
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

 private:
  int generation_;
  std::thread thread_;
};

}  // namespace rdmatx
