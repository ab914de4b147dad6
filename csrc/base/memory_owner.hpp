#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/export.hpp"

namespace rdmatx {

/// Stands for a piece of memory from the moment it was seen to just before it is freed or moved: whoever
/// frees it says die() first. What is remembered about the memory belongs to this object and not to the
/// address, which other memory may have next.
///
/// Owns nothing. Any thread. In a forked child it tells nobody: what watches belongs to the parent.
class RDMATX_API MemoryOwner {
 public:
  class Watcher {
   public:
    /// Called once, at the latest when the memory is freed, on the thread that frees it: perhaps a finalizer,
    /// so it must not wait for one, nor call back.
    virtual void owner_died(const MemoryOwner& owner) noexcept = 0;

   protected:
    ~Watcher() = default;
  };

  MemoryOwner(void* base, size_t bytes) noexcept : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}
  ~MemoryOwner() { die(); }
  MemoryOwner(const MemoryOwner&) = delete;
  MemoryOwner& operator=(const MemoryOwner&) = delete;

  std::byte* base() const noexcept { return base_; }
  size_t bytes() const noexcept { return bytes_; }
  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  /// Not one that a forked child has from its parent.
  bool of_this_process() const noexcept { return getpid() == process_; }
  bool holds(const void* data, size_t bytes) const noexcept;
  /// Each watcher once, however often it asks. False where the memory is gone: it is not told then.
  bool watch(const std::shared_ptr<Watcher>& watcher);
  /// Idempotent. On return nobody uses what was remembered.
  void die() noexcept;

 private:
  std::byte* const base_;
  const size_t bytes_;
  const pid_t process_ = getpid();
  std::atomic<bool> alive_{true};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Watcher>> watchers_;
};

}  // namespace rdmatx
