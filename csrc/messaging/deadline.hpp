#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>

#include "base/error.hpp"

namespace rdmatx {

/// A point in time that a wait may not pass; infinity is never. A plain value.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws UsageError where `seconds` is negative or no number.
  explicit Deadline(double seconds) : seconds_(seconds) {
    if (std::isnan(seconds) || seconds < 0)
      throw UsageError("a timeout is a number of seconds from 0 up, or math.inf for none");
    // Beyond a hundred years the clock's arithmetic would overflow: that is never, too.
    unlimited_ = seconds > 3e9;
    if (!unlimited_)
      at_ =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  bool passed() const { return !unlimited_ && Clock::now() >= at_; }
  /// Seconds left, at most `most`; 0 where it has passed.
  double left(double most) const {
    if (unlimited_) return most;
    return std::clamp(std::chrono::duration<double>(at_ - Clock::now()).count(), 0.0, most);
  }
  /// What was asked for.
  double seconds() const noexcept { return seconds_; }

  /// What else ends the waits of a handshake: called by them several times a second, it may throw. Not owned.
  void set_check(const std::function<void()>* check) noexcept { check_ = check; }
  void check() const {
    if (check_) (*check_)();
  }

 private:
  double seconds_;
  bool unlimited_ = false;
  Clock::time_point at_;
  const std::function<void()>* check_ = nullptr;
};

/// "2.5 s": seconds as people write them.
std::string seconds_text(double seconds);

}  // namespace rdmatx
