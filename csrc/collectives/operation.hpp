#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/call.hpp"
#include "collectives/members.hpp"
#include "gpu/buffer.hpp"

namespace rdmatx {

/// Memory that collectives of one group use in turn: kept for the next one, up to a limit.
class ScratchMemory {
 public:
  /// At least as much; its content is whatever was there.
  std::shared_ptr<HostBuffer> get(uint64_t bytes);

 private:
  std::shared_ptr<HostBuffer> kept_;
};

/// One collective on one rank, from its call to its one terminal state: sends, receives and reduces as its
/// schedule says.
///
/// Owns the caller's memory until it ends, its schedule and the requests under way. The state may be read
/// from any thread; everything else belongs to the lock of the engine.
class Operation {
 public:
  Operation(Call call, std::shared_ptr<const Schedule> schedule, OperationMemory input,
            OperationMemory output, double timeout);

  bool finished() const noexcept { return state_.load(std::memory_order_acquire) != State::pending; }
  /// Throws what made it fail.
  void check() const {
    if (state_.load(std::memory_order_acquire) == State::failed) std::rethrow_exception(failure_);
  }
  const Call& call() const noexcept { return call_; }
  double timeout() const noexcept { return timeout_; }

  // For the engine, under its lock.
  void set_record(const CallRecord& record) noexcept { record_ = record; }
  const CallRecord& record() const noexcept { return record_; }
  bool started() const noexcept { return run_.has_value(); }
  /// Takes scratch and starts its clock.
  void start(Members& members, ScratchMemory& scratch);
  /// Does what can be done now; true where something was. Throws what makes it fail.
  bool advance(Members& members);
  bool all_done() const noexcept { return run_ && run_->done(); }
  /// Seconds it has left, at most `most`.
  double left(double most) const { return deadline_ ? deadline_->left(most) : most; }
  bool late() const { return deadline_ && deadline_->passed(); }
  /// "rank 1, rank 3": whom it waits for.
  std::string awaited(const Members& members) const;
  void succeed() noexcept { end(State::succeeded, nullptr); }
  void fail(std::exception_ptr failure) noexcept { end(State::failed, std::move(failure)); }

 private:
  enum class State : uint8_t { pending, succeeded, failed };
  struct UnderWay {
    uint32_t step;
    std::shared_ptr<Request> request;
  };

  void end(State state, std::exception_ptr failure) noexcept;
  bool collect();
  bool start_waiting(Members& members);
  void perform(const Step& step, int world);
  void start_message(uint32_t index, Connection& connection);
  std::byte* at(const Range& range) const noexcept;
  OperationMemory memory(const Range& range) const;

  const Call call_;
  const uint64_t element_bytes_;
  const double timeout_;
  std::shared_ptr<const Schedule> schedule_;
  std::array<OperationMemory, buffer_count> memory_;
  CallRecord record_;
  uint64_t tag_ = 0;
  std::optional<ScheduleRun> run_;
  std::optional<Deadline> deadline_;
  std::vector<UnderWay> under_way_;
  std::vector<uint32_t> unconnected_;  // messages whose peer is not connected yet, in order
  std::exception_ptr failure_;
  std::atomic<State> state_{State::pending};
};

}  // namespace rdmatx
