#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "collectives/group.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"
#include "torch/tensors.hpp"

namespace rdmatx::distributed {

/// Runs it; errors of the core become torch.distributed.DistBackendError.
template <typename Body>
auto translated(Body body) {
  try {
    return body();
  } catch (const rdmatx::TimeoutError& error) {
    C10_THROW_ERROR(DistBackendError, std::string("The timeout passed: ") + error.what());
  } catch (const rdmatx::Error& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}
/// The same of one that was caught.
std::exception_ptr translated(const std::exception_ptr& failure) noexcept;

/// What a collective gives back: a list of tensors, or a list of lists.
struct Outputs {
  std::vector<at::Tensor> tensors;
  std::vector<std::vector<at::Tensor>> lists;

  at::IValue value() const;
};

/// One call of the backend: one operation of the group, or several, and what is to be done once they have
/// ended.
///
/// Whoever waits carries the group forward itself; a future is completed by the group's own thread. Holds the
/// tensors until then. Thread-safe.
class Work final : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, const char* title, const std::optional<std::vector<at::Tensor>>& inputs,
       uint64_t sequence, Outputs outputs, std::vector<Finish> finishes);

  /// The operations it stands for, once they are started; for the one who makes it.
  void stand_for(std::vector<GroupWork> operations);
  void stand_for(MessageWork message);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void conclude() noexcept;
  void tell_future();

  const uint64_t sequence_;
  const Outputs outputs_;
  std::vector<GroupWork> operations_;
  std::optional<MessageWork> message_;
  std::once_flag concluded_;
  std::vector<Finish> finishes_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<size_t> pending_for_future_{0};
};

}  // namespace rdmatx::distributed
