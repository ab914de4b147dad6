#pragma once

#include <atomic>
#include <mutex>

namespace rdmatx {

/// A mutex at which callers go before the threads that only make progress: those would take it again and
/// again, and a spinning thread would starve whoever waits for it.
class CallerMutex {
 public:
  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  /// Whether a caller waits for it: who only makes progress stands back then.
  bool wanted() const noexcept { return callers_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class CallerLock;
  std::mutex mutex_;
  std::atomic<int> callers_{0};
};

/// Holds it for a caller.
class CallerLock {
 public:
  explicit CallerLock(CallerMutex& mutex) : mutex_(mutex) {
    mutex_.callers_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    mutex_.callers_.fetch_sub(1, std::memory_order_relaxed);
  }
  /// Of a mutex that is held already.
  CallerLock(CallerMutex& mutex, std::adopt_lock_t) : mutex_(mutex) {}
  ~CallerLock() { mutex_.unlock(); }
  CallerLock(const CallerLock&) = delete;
  CallerLock& operator=(const CallerLock&) = delete;

 private:
  CallerMutex& mutex_;
};

}  // namespace rdmatx
