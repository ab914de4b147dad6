#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/shared_memory.hpp"

namespace rdmatx::soft {

/// A registered region as peers see it.
struct alignas(64) MemoryEntry {
  std::atomic<uint32_t> key;  ///< 0 while the entry is free; both the lkey and the rkey
  std::atomic<uint32_t> protection_domain;
  std::atomic<uint32_t> access;  ///< IBV_ACCESS_*
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> length;
  std::atomic<uint64_t> segment;         ///< id of the SharedMemory it lies in, 0 for ordinary memory
  std::atomic<uint64_t> segment_offset;  ///< of `address` in that segment
  /// What has to be added to an address of the region to find its bytes in its process: a dma-buf lies where
  /// it was mapped, and its region has the addresses that were asked for.
  std::atomic<uint64_t> displacement;
};
static_assert(sizeof(MemoryEntry) == 64);

/// The regions registered in one process, in memory that its peers map, so that a peer checks a key and moves
/// the data without a word from this process.
///
/// The owner adds and removes under its lock; anyone reads. A reader first says which key it is going to use
/// (ChannelState::accessing_key), then looks it up; remove() makes the key invalid first and its caller then
/// waits for readers, so an entry never changes under a reader that found it valid.
class MemoryTable {
 public:
  static constexpr uint32_t max_entries = 1u << 17;

  static std::shared_ptr<MemoryTable> create();
  static std::shared_ptr<MemoryTable> map(UniqueFd fd);

  /// The new region's key, or 0 when the table is full.
  uint32_t add(uint64_t address, uint64_t length, uint32_t protection_domain, uint32_t access,
               const SharedMemory* segment, uint64_t displacement = 0);
  /// Makes the key invalid; the entry is not used again before release().
  void remove(uint32_t key);
  void release(uint32_t key);

  /// The entry of `key` where it grants `access` to [address, address + length) within the protection domain;
  /// null otherwise.
  const MemoryEntry* find(uint32_t key, uint64_t address, uint64_t length, uint32_t protection_domain,
                          uint32_t access) const noexcept;
  /// Whether the region of `key` lies in memory that peers map. No check: a hint of the way to take.
  bool is_shared(uint32_t key) const noexcept;
  /// Of a region that was found, MemoryEntry::displacement.
  uint64_t displacement(uint32_t key) const noexcept;
  int fd() const noexcept { return memory_->fd(); }

 private:
  explicit MemoryTable(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
  MemoryEntry* entries() const noexcept { return reinterpret_cast<MemoryEntry*>(memory_->data()); }

  std::shared_ptr<SharedMemory> memory_;
  std::mutex mutex_;
  std::deque<uint32_t> free_;  // indices given back, oldest first
  uint32_t used_ = 1;          // entries ever used; entry 0 stays free so that no key is small
  std::vector<uint8_t> generation_;
};

}  // namespace rdmatx::soft
