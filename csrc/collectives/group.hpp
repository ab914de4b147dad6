#pragma once

#include <cstdint>
#include <exception>
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
class Operation;

/// A collective that was called. Copies share it. May be used from any thread.
class RDMATX_API CollectiveWork {
 public:
  CollectiveWork(std::shared_ptr<Group> group, std::shared_ptr<Operation> operation)
      : group_(std::move(group)), operation_(std::move(operation)) {}
  /// Throws what made it fail; TimeoutError where it is still pending then (nothing: waits for its end, which
  /// its own timeout bounds), and it goes on.
  void wait(std::optional<double> timeout) const;
  bool done() const;
  /// Without looking.
  bool finished() const noexcept;
  const std::shared_ptr<Progress>& progress_of_context() const noexcept;

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Operation> operation_;
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

  /// Starts a collective; `input` and `output` as BufferId has them (in place: `output` alone). `timeout` in
  /// seconds, nothing is the group's, bounds the operation from its start: a late one fails the group. Throws
  /// UsageError where the call makes no sense on this rank; then nothing was sent.
  CollectiveWork start(Call call, OperationMemory input, OperationMemory output,
                       std::optional<double> timeout, bool in_background);
  /// Starts it, and waits for its end.
  void run(Call call, OperationMemory input, OperationMemory output, std::optional<double> timeout);

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
  friend class CollectiveWork;
  using ScheduleKey = std::vector<uint64_t>;
  Group(std::shared_ptr<Engine> engine, GroupSettings settings);
  void check(const Call& call, const OperationMemory& input, const OperationMemory& output) const;
  std::shared_ptr<const Schedule> schedule_of(const Call& call);

  const std::shared_ptr<Engine> engine_;
  const GroupSettings settings_;
  std::mutex schedules_mutex_;
  std::map<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;  // made once for calls that come again
};

}  // namespace rdmatx
