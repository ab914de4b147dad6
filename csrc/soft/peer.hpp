#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/shared_memory.hpp"
#include "base/unique_fd.hpp"
#include "soft/memory_table.hpp"

namespace rdmatx::soft {

class Wire;

/// Another process's software HCA (or this one's own) as seen from here: its region table, its doorbell, and
/// the ways to reach its memory. Made by the wire; queue pairs hold it. The wire's thread fills it in before
/// `ready`, and after that only `alive` and the mapped segments change.
class Peer {
 public:
  explicit Peer(uint64_t identity, bool is_self) : identity_(identity), is_self_(is_self) {}

  uint64_t identity() const noexcept { return identity_; }
  bool is_self() const noexcept { return is_self_; }
  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  /// Whether the kernel lets this process copy to and from the other's memory (probed, not guessed).
  bool can_copy_directly() const noexcept { return is_self_ || can_attach_.load(std::memory_order_relaxed); }
  void forbid_direct_copies() noexcept { can_attach_.store(false, std::memory_order_relaxed); }
  pid_t pid() const noexcept { return pid_; }
  const MemoryTable& memory() const noexcept { return *memory_; }
  void ring_doorbell() const noexcept;
  /// Where a segment of the peer's is mapped here; null while it is not (and then it is asked for, once) or
  /// where it is shorter than `end` bytes.
  std::byte* mapped_segment(uint64_t segment, uint64_t end, Wire& wire);

 private:
  friend class Wire;
  const uint64_t identity_;
  const bool is_self_;
  std::atomic<bool> alive_{true};
  std::atomic<bool> can_attach_{false};
  pid_t pid_ = 0;
  std::shared_ptr<MemoryTable> memory_;
  UniqueFd doorbell_;

  std::mutex mappings_mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<SharedMemory>> mappings_;  // null while asked for, or refused
};

}  // namespace rdmatx::soft
