#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace rdmatx {

/// Something that a group was asked to do, from the call to its one terminal state.
///
/// The state may be read from any thread; everything else belongs to the lock of the engine.
class Pending {
 public:
  explicit Pending(double timeout) : timeout_(timeout) {}
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  bool finished() const noexcept { return state_.load(std::memory_order_acquire) != State::pending; }
  /// Throws what made it fail.
  void check() const {
    if (state_.load(std::memory_order_acquire) == State::failed) std::rethrow_exception(failure_);
  }
  /// "all_reduce of 1000 float32 elements (op sum)": for messages to people.
  virtual std::string description() const = 0;
  /// "all_reduce".
  virtual const char* name() const noexcept = 0;
  /// Seconds it may take.
  double timeout() const noexcept { return timeout_; }

  // For the engine, under its lock.
  void succeed() noexcept { end(State::succeeded, nullptr); }
  void fail(std::exception_ptr failure) noexcept { end(State::failed, std::move(failure)); }
  /// What is to be called once it has ended; empty where nothing is.
  void add_end_call(std::function<void()> call) { end_calls_.push_back(std::move(call)); }
  std::vector<std::function<void()>> take_end_calls() noexcept { return std::exchange(end_calls_, {}); }

 protected:
  /// It ends: lets go what it holds.
  virtual void release() noexcept = 0;

 private:
  enum class State : uint8_t { pending, succeeded, failed };

  void end(State state, std::exception_ptr failure) noexcept {
    if (finished()) return;
    failure_ = std::move(failure);
    release();
    state_.store(state, std::memory_order_release);
  }

  const double timeout_;
  std::vector<std::function<void()>> end_calls_;
  std::exception_ptr failure_;
  std::atomic<State> state_{State::pending};
};

}  // namespace rdmatx
