#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/call.hpp"
#include "collectives/members.hpp"
#include "collectives/pending.hpp"
#include "gpu/buffer.hpp"

namespace rdmatx {

/// Memory that collectives of one group use in turn: kept for the next one, up to a limit.
class ScratchMemory {
 public:
  /// At least as much; its content is whatever was there.
  std::shared_ptr<HostBuffer> get(uint64_t bytes);
  void clear() noexcept { kept_.reset(); }

 private:
  std::shared_ptr<HostBuffer> kept_;
};

/// One collective on one rank, from its call to its one terminal state: sends, receives and reduces as its
/// schedule says.
///
/// Owns the caller's memory until it ends, its schedule and the requests under way.
class Operation final : public Pending {
 public:
  Operation(Call call, std::shared_ptr<const Schedule> schedule, OperationMemory input,
            OperationMemory output, double timeout);

  const Call& call() const noexcept { return call_; }
  std::string description() const override { return describe(call_); }
  const char* name() const noexcept override { return collective_name(call_.collective); }

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

 private:
  struct UnderWay {
    uint32_t step;
    std::shared_ptr<Request> request;
  };

  void release() noexcept override;
  bool collect();
  bool start_waiting(Members& members);
  void perform(const Step& step, int world);
  void start_message(uint32_t index, Members& members);
  std::byte* at(const Range& range) const noexcept;
  OperationMemory memory(const Range& range) const;

  const Call call_;
  const uint64_t element_bytes_;
  std::shared_ptr<const Schedule> schedule_;
  std::array<OperationMemory, buffer_count> memory_;
  CallRecord record_;
  uint64_t tag_ = 0;
  std::optional<ScheduleRun> run_;
  std::optional<Deadline> deadline_;
  std::vector<UnderWay> under_way_;
  std::vector<uint32_t> unconnected_;  // messages whose peer is not connected yet, in order
};

}  // namespace rdmatx
