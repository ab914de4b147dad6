#include "torch/work.hpp"

namespace rdmatx::distributed {

std::exception_ptr translated(const std::exception_ptr& failure) noexcept {
  try {
    translated([&] { std::rethrow_exception(failure); });
  } catch (...) {
    return std::current_exception();
  }
  return failure;
}

at::IValue Outputs::value() const {
  return lists.empty() ? at::IValue(tensors) : at::IValue(lists);
}

Work::Work(int rank, c10d::OpType type, const char* title,
           const std::optional<std::vector<at::Tensor>>& inputs, uint64_t sequence, Outputs outputs,
           std::vector<Finish> finishes)
    : c10d::Work(rank, type, title, inputs),
      sequence_(sequence),
      outputs_(std::move(outputs)),
      finishes_(std::move(finishes)) {}

void Work::stand_for(std::vector<GroupWork> operations) {
  operations_ = std::move(operations);
  // The profiler wants to know of the end whether anybody waits or not.
  if (recordFunctionEndCallback_) getFuture();
}

void Work::stand_for(MessageWork message) {
  message_ = message;
  stand_for(std::vector<GroupWork>{std::move(message)});
}

bool Work::isCompleted() {
  for (const GroupWork& operation : operations_)
    if (!translated([&] { return operation.done(); })) return false;
  conclude();
  return true;
}

bool Work::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr Work::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

int Work::sourceRank() const {
  TORCH_CHECK(message_, "only a receive has a source rank");
  return translated([&] { return message_->peer(); });
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(isCompleted(), "the work has no result yet: wait() for it first");
  return outputs_.lists.empty() ? outputs_.tensors : joined(outputs_.lists);
}

bool Work::wait(std::chrono::milliseconds timeout) {
  std::optional<double> seconds;
  if (timeout != kNoTimeout) seconds = std::chrono::duration<double>(timeout).count();
  translated([&] {
    for (const GroupWork& operation : operations_) {
      try {
        operation.wait(seconds);
      } catch (...) {
        // Where it is over, it is so for isCompleted() and the profiler too.
        if (operation.finished()) conclude();
        throw;
      }
    }
  });
  conclude();
  if (const auto failure = exception()) std::rethrow_exception(failure);
  return true;
}

// Once, by whoever sees first that all is over: the tensors get what they are to hold before anybody is told.
// The operations have ended, so looking at them waits for nothing; where one failed, the first failure is the
// work's.
void Work::conclude() noexcept {
  std::call_once(concluded_, [this] {
    std::exception_ptr failure;
    try {
      for (const GroupWork& operation : operations_) operation.wait({});
      for (const Finish& finish : finishes_) finish();
    } catch (...) {
      failure = translated(std::current_exception());
    }
    finishes_.clear();
    release_tensors_given_up();
    finish(failure);
  });
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        outputs_.lists.empty() ? c10::ListType::ofTensors()
                               : c10::ListType::create(c10::ListType::ofTensors()));
  }
  // One more than there are, so that it is not told before all are known.
  pending_for_future_ = operations_.size() + 1;
  const auto self = c10::intrusive_ptr<Work>::reclaim_copy(this);
  for (const GroupWork& operation : operations_) operation.at_end([self] { self->tell_future(); });
  tell_future();
  return future_;
}

void Work::tell_future() {
  if (pending_for_future_.fetch_sub(1) > 1) return;
  conclude();
  if (const auto failure = exception())
    future_->setError(failure);
  else
    future_->markCompleted(outputs_.value());
}

}  // namespace rdmatx::distributed
