#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/call.hpp"
#include "collectives/members.hpp"
#include "messaging/context.hpp"

namespace rdmatx {

class Engine;
class Group;
class Message;
class Operation;
class Pending;

/// What a group was asked to do: a collective, or a message. Copies share it. May be used from any thread.
class RDMATX_API GroupWork {
 public:
  /// Throws what made it fail; TimeoutError where it is still pending then (nothing: waits for its end, which
  /// its own timeout bounds), and it goes on.
  void wait(std::optional<double> timeout) const;
  bool done() const;
  /// Without looking.
  bool finished() const noexcept;
  /// Calls it once this has ended, well or not: on the group's own thread (or the one that closes the group)
  /// with no lock held, or at once where it has ended already. It may use the group, and close it.
  void at_end(std::function<void()> call) const;
  const std::shared_ptr<Progress>& progress_of_context() const noexcept;

 protected:
  GroupWork(std::shared_ptr<Group> group, std::shared_ptr<Pending> pending)
      : group_(std::move(group)), pending_(std::move(pending)) {}
  const Pending& pending() const noexcept { return *pending_; }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Pending> pending_;
};

class RDMATX_API CollectiveWork : public GroupWork {
 public:
  CollectiveWork(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation);
};

class RDMATX_API MessageWork : public GroupWork {
 public:
  MessageWork(std::shared_ptr<Group> group, std::shared_ptr<Message> message);
  /// Of a receive from any rank: who sent it. Throws UsageError while it is pending, or what made it fail.
  int peer() const;
  /// Bytes moved; of a receive, what came. Throws alike.
  uint64_t bytes() const;

 private:
  const Message& ended_message() const;
};

/// What may be said of a collective or message beside what it is.
struct GroupCallOptions {
  /// Seconds from its start; nothing is the group's.
  std::optional<double> timeout;
  /// Nobody will wait for it at once: the group's own thread carries it on meanwhile.
  bool in_background = false;
};

/// One rank's part of a group of processes that do collectives together. All ranks call the same ones in the
/// same order.
///
/// Owns its listener, its connections to other ranks and, until they end, the memory of its operations. All
/// functions may be called from any thread; the order of calls is that in which they get its lock. After a
/// failure of any rank every pending and later call on all ranks throws one and the same cause; a new group
/// may then be made, in the same processes.
class RDMATX_API Group : public std::enable_shared_from_this<Group> {
 public:
  /// Returns once this rank is connected to rank 0 and to its neighbours. Throws PeerLostError,
  /// TimeoutError that name who is missing.
  static std::shared_ptr<Group> create(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener,
                                       GroupSettings settings);
  ~Group();

  /// Starts a collective; `input` and `output` as BufferId has them (in place: `output` alone). One that is
  /// late fails the group. Throws UsageError where the call makes no sense on this rank; then nothing was
  /// sent.
  CollectiveWork start(Call call, OperationMemory input, OperationMemory output,
                       GroupCallOptions options = {});
  /// Starts it, and waits for its end.
  void run(Call call, OperationMemory input, OperationMemory output, std::optional<double> timeout);

  /// Starts a message to one rank, or from one (nothing: whichever sends one of this tag first), beside the
  /// collectives. Tags are below 2^63. A receive that is late with no message in sight ends alone, as does
  /// one whose message does not fit (SizeMismatchError); a message that is late under way fails the group.
  MessageWork send(OperationMemory memory, int to, uint64_t tag, GroupCallOptions options = {});
  MessageWork receive(OperationMemory memory, std::optional<int> from, uint64_t tag,
                      GroupCallOptions options = {});

  int rank() const noexcept { return settings_.rank; }
  int world() const noexcept { return settings_.world(); }
  const std::vector<std::string>& addresses() const noexcept { return settings_.addresses; }
  void abort(const std::string& reason);
  /// Null where it has not failed.
  std::exception_ptr failure() const;
  void set_timeout(double seconds);
  double timeout() const;
  uint64_t sequence() const;
  void close();
  bool closed() const noexcept;
  const std::shared_ptr<Progress>& progress_of_context() const noexcept;

 private:
  friend class GroupWork;
  using ScheduleKey = std::vector<uint64_t>;
  Group(std::shared_ptr<Engine> engine, GroupSettings settings);
  void check(const Call& call, const OperationMemory& input, const OperationMemory& output) const;
  std::shared_ptr<const Schedule> schedule_of(const Call& call);
  double seconds_of(const GroupCallOptions& options) const;
  MessageWork start(bool sends, OperationMemory memory, int peer, uint64_t tag, GroupCallOptions options);

  const std::shared_ptr<Engine> engine_;
  const GroupSettings settings_;
  std::mutex schedules_mutex_;
  std::map<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;  // made once for calls that come again
};

}  // namespace rdmatx
