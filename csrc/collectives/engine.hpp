#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/members.hpp"
#include "collectives/message.hpp"
#include "collectives/operation.hpp"
#include "messaging/caller_lock.hpp"
#include "messaging/progress.hpp"

namespace rdmatx {

/// What carries the collectives of one rank of a group forward, one after another in the order they were
/// called, and the messages beside them.
///
/// It is one of the things that whoever waits in the context makes progress on; a thread of its own does so
/// while operations are pending and nobody waits, and looks twenty times a second whether the other ranks
/// live. Ranks tell the next one around the ring what they call, and rank 0 is connected to all: so calls
/// that differ, a rank that dies, an operation that is late or an abort end the group on every rank, with one
/// cause. Thread-safe; its lock is held for calling connections, and while one is being made.
class Engine final : public Progressing, public std::enable_shared_from_this<Engine> {
 public:
  /// Connects to rank 0 and the neighbours, and waits for those who connect to this rank.
  static std::shared_ptr<Engine> create(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener,
                                        GroupSettings settings);
  ~Engine() override;

  /// Queues an operation and starts what can be started. `in_background`: nobody will wait for it at once.
  /// Throws the group's failure, ClosedError.
  void submit(const std::shared_ptr<Operation>& operation, bool in_background);
  void submit(const std::shared_ptr<Message>& message, bool in_background);
  /// Throws what made it fail; TimeoutError where it is still pending then, and it goes on.
  void wait(const Pending& pending, std::optional<double> timeout);
  /// Looks once.
  bool done(const Pending& pending);
  /// Has `call` called once it has ended; see GroupWork.
  void at_end(Pending& pending, std::function<void()> call);

  /// Ends everything that is pending here and on all other ranks, for good.
  void abort(const std::string& reason);
  /// Why the group has failed; nothing where it has not.
  std::exception_ptr failure() const;
  void set_timeout(double seconds);
  double timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  /// The last one that was called; 0 where none was.
  uint64_t sequence() const;
  const std::shared_ptr<Progress>& progress_of_context() const noexcept { return progress_; }

  // Progressing.
  bool progress() noexcept override;
  void check_peer() noexcept override {}
  void arm() noexcept override {}
  void event_came() noexcept override {}
  bool wants_polling() const noexcept override { return wants_polling_.load(std::memory_order_relaxed); }
  bool owns(const CompletionQueue*) const noexcept override { return false; }
  /// Tells the other ranks that this one leaves.
  void expect_close() override;
  /// Ends what is pending with ClosedError, closes the connections and the listener. Idempotent.
  void close() override;
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  static constexpr const char* advice =
      ". The group has failed on all ranks; a new one can be made of those that live";

  Engine(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener, GroupSettings settings);

  void meet();
  void serve();
  void check_usable() const;
  template <typename Queue>
  void submit(const Pending& pending, bool in_background, Queue queue);

  // Under the lock.
  bool make_progress();
  bool advance_operations();
  bool advance_messages();
  void hear();
  void start(Operation& operation);
  void on_word(int from, const Word& word);
  void on_end(int rank, const std::exception_ptr& why);
  void compare_calls();
  void give_up_late(const Operation& operation);
  void give_up_late(Message& message);
  void ended(Pending& pending);
  void fail(std::exception_ptr failure, const Word& word);
  void fail_by_error(std::exception_ptr error);
  void give_up_all();
  std::string pending_text() const;

  void bury();
  void make_end_calls();

  /// The engine whose thread this is.
  static thread_local const Engine* served_here;

  const int generation_;
  const std::shared_ptr<Progress> progress_;
  UniqueFd event_;  // what it is watched by among connections; never readable
  mutable CallerMutex mutex_;
  Members members_;
  ScratchMemory scratch_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::vector<std::shared_ptr<Message>> messages_;  // in the order of the calls
  std::vector<std::function<void()>> end_calls_;    // of what has ended, not called yet
  uint64_t sequence_ = 0;
  std::deque<CallRecord> called_;     // by this rank, not compared yet
  std::deque<CallRecord> announced_;  // by the rank before, not compared yet
  std::exception_ptr failure_;
  std::exception_ptr interrupted_;  // a Ctrl-C that came while connecting
  std::vector<std::shared_ptr<Request>> last_words_;
  std::vector<std::shared_ptr<Connection>> doomed_;
  std::vector<std::shared_ptr<Pending>> ending_;
  bool said_leaving_ = false;
  std::atomic<double> timeout_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> wants_polling_{false};
  std::atomic<bool> to_bury_{false};
  std::atomic<bool> has_end_calls_{false};
  std::atomic<size_t> pending_{0};
  std::atomic<int> waiters_{0};

  std::mutex service_mutex_;
  std::condition_variable service_called_;
  // Outlives the engine for the thread, which something that it called may have closed.
  const std::shared_ptr<std::atomic<bool>> stopping_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex close_mutex_;
  std::unique_ptr<ServiceThread> service_;
};

}  // namespace rdmatx
