#include "soft/memory_table.hpp"

#include <sys/stat.h>

#include "base/error.hpp"

namespace rdmatx::soft {
namespace {
constexpr size_t table_bytes = MemoryTable::max_entries * sizeof(MemoryEntry);
// A key is the entry's index and a generation, so that a stale key does not open its successor's memory.
constexpr uint32_t index_of(uint32_t key) {
  return key >> 8;
}
// Entries wait this long in the queue of free ones, so that a key comes round again late.
constexpr size_t reuse_after = 1024;
}  // namespace

std::shared_ptr<MemoryTable> MemoryTable::create() {
  return std::shared_ptr<MemoryTable>(new MemoryTable(SharedMemory::create(table_bytes, "rdmatx-regions")));
}

std::shared_ptr<MemoryTable> MemoryTable::map(UniqueFd fd) {
  struct stat file{};
  if (fstat(fd.get(), &file) != 0 || static_cast<size_t>(file.st_size) < table_bytes)
    throw Error("a peer handed over a region table that is too small");
  return std::shared_ptr<MemoryTable>(new MemoryTable(SharedMemory::map(std::move(fd), table_bytes)));
}

uint32_t MemoryTable::add(uint64_t address, uint64_t length, uint32_t protection_domain, uint32_t access,
                          const SharedMemory* segment, uint64_t displacement) {
  std::lock_guard lock(mutex_);
  uint32_t index;
  if (free_.size() > reuse_after || (used_ == max_entries && !free_.empty())) {
    index = free_.front();
    free_.pop_front();
  } else if (used_ < max_entries) {
    index = used_++;
  } else {
    return 0;
  }
  if (generation_.size() <= index) generation_.resize(index + 1);
  const uint32_t key = index << 8 | ++generation_[index];
  MemoryEntry& entry = entries()[index];
  entry.protection_domain.store(protection_domain, std::memory_order_relaxed);
  entry.access.store(access, std::memory_order_relaxed);
  entry.address.store(address, std::memory_order_relaxed);
  entry.length.store(length, std::memory_order_relaxed);
  entry.segment.store(segment ? segment->id() : 0, std::memory_order_relaxed);
  entry.segment_offset.store(segment ? address - reinterpret_cast<uint64_t>(segment->data()) : 0,
                             std::memory_order_relaxed);
  entry.displacement.store(displacement, std::memory_order_relaxed);
  entry.key.store(key, std::memory_order_release);
  return key;
}

void MemoryTable::remove(uint32_t key) {
  // Sequentially consistent, as is the reader's announcement: either the reader sees the key gone, or the
  // owner sees the reader.
  entries()[index_of(key)].key.store(0, std::memory_order_seq_cst);
}

void MemoryTable::release(uint32_t key) {
  std::lock_guard lock(mutex_);
  free_.push_back(index_of(key));
}

const MemoryEntry* MemoryTable::find(uint32_t key, uint64_t address, uint64_t length,
                                     uint32_t protection_domain, uint32_t access) const noexcept {
  const uint32_t index = index_of(key);
  if (key == 0 || index >= max_entries) return nullptr;
  const MemoryEntry& entry = entries()[index];
  if (entry.key.load(std::memory_order_seq_cst) != key) return nullptr;
  if (entry.protection_domain.load(std::memory_order_relaxed) != protection_domain) return nullptr;
  if ((entry.access.load(std::memory_order_relaxed) & access) != access) return nullptr;
  const uint64_t first = entry.address.load(std::memory_order_relaxed);
  const uint64_t size = entry.length.load(std::memory_order_relaxed);
  if (address < first || address - first > size || length > size - (address - first)) return nullptr;
  return &entry;
}

bool MemoryTable::is_shared(uint32_t key) const noexcept {
  const uint32_t index = index_of(key);
  return index < max_entries && entries()[index].segment.load(std::memory_order_relaxed) != 0;
}

uint64_t MemoryTable::displacement(uint32_t key) const noexcept {
  const uint32_t index = index_of(key);
  return index < max_entries ? entries()[index].displacement.load(std::memory_order_relaxed) : 0;
}

}  // namespace rdmatx::soft
