#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "bindings/gil.hpp"

namespace rdmatx::bindings {

/// Seconds from now; none is no limit.
class Deadline {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Deadline(std::optional<double> seconds) : seconds_(seconds), start_(Clock::now()) {}
  bool passed() const { return seconds_ && left() <= 0; }
  /// At most `most` seconds.
  double left(double most = 1e9) const {
    if (!seconds_) return most;
    return std::min(most, *seconds_ - std::chrono::duration<double>(Clock::now() - start_).count());
  }
  double seconds() const { return seconds_.value_or(0); }

 private:
  std::optional<double> seconds_;
  Clock::time_point start_;
};

/// Calls `attempt(seconds)`, which waits no longer than that, without the GIL, until it returns something or
/// the deadline has passed (then the empty result of the last attempt). Ctrl-C raises KeyboardInterrupt.
template <class Attempt>
auto wait_interruptibly(const Deadline& deadline, Attempt attempt) {
  constexpr double longest_seconds = 0.1;  // signals of Python are answered this often
  for (;;) {
    auto result = [&] {
      const GilReleased released;
      return attempt(std::max(0.0, deadline.left(longest_seconds)));
    }();
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    if (result || deadline.passed()) return result;
  }
}

}  // namespace rdmatx::bindings
