// Device memory of the fake driver; see fake.hpp.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "fake.hpp"

namespace fake {
namespace {

constexpr size_t page = 4096;
constexpr size_t sub_allocated_from = size_t{256} << 10;  // smaller ones share a block, as in the driver
constexpr size_t shared_block = size_t{2} << 20;
constexpr size_t sub_alignment = 512;

size_t whole_pages(size_t bytes) {
  return (bytes + page - 1) / page * page;
}

/// Physical memory: pages of a memfd, mapped once for the fake itself.
struct Block {
  explicit Block(size_t size) : bytes(whole_pages(size)) {
    fd = memfd_create("fake-gpu-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    alias = mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
  }
  ~Block() {
    if (base) munmap(base, bytes);
    if (alias) munmap(alias, bytes);
    if (fd >= 0) close(fd);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// The public address, which nobody may touch (managed memory aside).
  bool show(int protection) {
    void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    base = mapped == MAP_FAILED ? nullptr : mapped;
    return base != nullptr;
  }

  size_t bytes;
  int fd = -1;
  std::byte* alias = nullptr;
  void* base = nullptr;
  int gpu = 0;
  size_t used = 0;  // of a block that several allocations share
};

struct Allocation {
  std::shared_ptr<Block> block;
  size_t bytes = 0;
  size_t offset = 0;  // in the block
  uint64_t id = 0;
  bool managed = false, pooled = false, mapped = false;
};

struct Memory {
  std::mutex mutex;
  std::map<Pointer, Allocation> allocations;
  std::map<int, std::shared_ptr<Block>> shared;  // by GPU: the block that small allocations come from now
  std::map<Pointer, size_t> pinned;
  std::map<Pointer, size_t> reserved;
  std::map<Block*, std::pair<std::shared_ptr<Block>, int>> handles;  // and how often each was retained
  uint64_t next_id = 1;
};

Memory& memory() {
  static auto* all = new Memory;
  return *all;
}

const std::pair<const Pointer, Allocation>* find(Pointer pointer) {
  auto next = memory().allocations.upper_bound(pointer);
  if (next == memory().allocations.begin()) return nullptr;
  --next;
  return pointer - next->first < next->second.bytes ? &*next : nullptr;
}

bool is_pinned(Pointer pointer) {
  auto next = memory().pinned.upper_bound(pointer);
  return next != memory().pinned.begin() && pointer - std::prev(next)->first < std::prev(next)->second;
}

Result allocate(Pointer* pointer, size_t bytes, bool managed, bool pooled) {
  if (bytes == 0) return invalid_value;
  const std::lock_guard lock(memory().mutex);
  Allocation made;
  made.bytes = bytes;
  made.id = memory().next_id++;
  made.managed = managed;
  made.pooled = pooled;
  const int gpu = current_gpu();
  if (!managed && bytes < sub_allocated_from) {
    auto& block = memory().shared[gpu];
    if (!block || block->used + bytes > block->bytes) block.reset();
    if (!block) {
      block = std::make_shared<Block>(shared_block);
      if (!block->alias || !block->show(PROT_NONE)) return block.reset(), out_of_memory;
      block->gpu = gpu;
    }
    made.block = block;
    made.offset = block->used;
    block->used += (bytes + sub_alignment - 1) / sub_alignment * sub_alignment;
  } else {
    made.block = std::make_shared<Block>(bytes);
    if (!made.block->alias || !made.block->show(managed ? PROT_READ | PROT_WRITE : PROT_NONE))
      return out_of_memory;
    made.block->gpu = gpu;
  }
  *pointer = reinterpret_cast<Pointer>(made.block->base) + made.offset;
  memory().allocations[*pointer] = std::move(made);
  return success;
}

Result release(Pointer pointer) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().allocations.find(pointer);
  if (found == memory().allocations.end() || found->second.mapped) return invalid_value;
  // Its pages lose what was in them: what reads them later is seen.
  std::memset(found->second.block->alias + found->second.offset, 0xdd, found->second.bytes);
  const int gpu = found->second.block->gpu;
  memory().allocations.erase(found);
  if (auto& block = memory().shared[gpu]; block.use_count() == 1) block.reset();
  return success;
}

}  // namespace

std::byte* reach(Pointer pointer, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const auto* found = find(pointer);
  if (!found || bytes > found->second.bytes - (pointer - found->first)) return nullptr;
  return found->second.block->alias + found->second.offset + (pointer - found->first);
}

}  // namespace fake

using fake::Pointer;
using fake::Result;

FAKE_EXPORT Result cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  FAKE_CALL_IN_CONTEXT(cuMemAlloc_v2);
  return fake::allocate(pointer, bytes, false, false);
}

FAKE_EXPORT Result cuMemAllocManaged(Pointer* pointer, size_t bytes, unsigned) {
  FAKE_CALL_IN_CONTEXT(cuMemAllocManaged);
  return fake::allocate(pointer, bytes, true, false);
}

FAKE_EXPORT Result cuMemAllocAsync(Pointer* pointer, size_t bytes, void*) {
  FAKE_CALL_IN_CONTEXT(cuMemAllocAsync);
  return fake::allocate(pointer, bytes, false, true);
}

FAKE_EXPORT Result cuMemFreeAsync(Pointer pointer, void* stream) {
  FAKE_CALL_IN_CONTEXT(cuMemFreeAsync);
  return fake::enqueue(stream, [pointer] { fake::release(pointer); });
}

FAKE_EXPORT Result cuMemFree_v2(Pointer pointer) {
  FAKE_CALL_IN_CONTEXT(cuMemFree_v2);
  return fake::release(pointer);
}

FAKE_EXPORT Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  FAKE_CALL_IN_CONTEXT(cuMemHostAlloc);
  *pointer = std::aligned_alloc(fake::page, fake::whole_pages(bytes));
  if (!*pointer) return fake::out_of_memory;
  const std::lock_guard lock(fake::memory().mutex);
  fake::memory().pinned[reinterpret_cast<Pointer>(*pointer)] = fake::whole_pages(bytes);
  return fake::success;
}

FAKE_EXPORT Result cuMemFreeHost(void* pointer) {
  FAKE_CALL_IN_CONTEXT(cuMemFreeHost);
  const std::lock_guard lock(fake::memory().mutex);
  if (fake::memory().pinned.erase(reinterpret_cast<Pointer>(pointer)) == 0) return fake::invalid_value;
  std::free(pointer);
  return fake::success;
}

// ---- mapped memory

FAKE_EXPORT Result cuMemAddressReserve(Pointer* pointer, size_t bytes, size_t, Pointer, unsigned long long) {
  FAKE_CALL(cuMemAddressReserve);
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return fake::out_of_memory;
  *pointer = reinterpret_cast<Pointer>(range);
  const std::lock_guard lock(fake::memory().mutex);
  fake::memory().reserved[*pointer] = bytes;
  return fake::success;
}

FAKE_EXPORT Result cuMemAddressFree(Pointer pointer, size_t bytes) {
  FAKE_CALL(cuMemAddressFree);
  const std::lock_guard lock(fake::memory().mutex);
  if (fake::memory().reserved.erase(pointer) == 0) return fake::invalid_value;
  munmap(reinterpret_cast<void*>(pointer), bytes);
  return fake::success;
}

FAKE_EXPORT Result cuMemCreate(unsigned long long* handle, size_t bytes, const void*, unsigned long long) {
  FAKE_CALL_IN_CONTEXT(cuMemCreate);
  auto block = std::make_shared<fake::Block>(bytes);
  if (!block->alias) return fake::out_of_memory;
  block->gpu = fake::current_gpu();
  const std::lock_guard lock(fake::memory().mutex);
  *handle = reinterpret_cast<unsigned long long>(block.get());
  fake::memory().handles[block.get()] = {block, 1};
  return fake::success;
}

FAKE_EXPORT Result cuMemMap(Pointer pointer, size_t bytes, size_t offset, unsigned long long handle,
                            unsigned long long) {
  FAKE_CALL(cuMemMap);
  const std::lock_guard lock(fake::memory().mutex);
  const auto found = fake::memory().handles.find(reinterpret_cast<fake::Block*>(handle));
  if (found == fake::memory().handles.end() || offset + bytes > found->second.first->bytes ||
      bytes % fake::page)
    return fake::invalid_value;
  const auto& block = found->second.first;
  void* mapped = mmap(reinterpret_cast<void*>(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, block->fd,
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return fake::out_of_memory;
  fake::Allocation made;
  made.block = block;
  made.bytes = bytes;
  made.offset = offset;
  made.id = fake::memory().next_id++;
  made.mapped = true;
  fake::memory().allocations[pointer] = std::move(made);
  return fake::success;
}

FAKE_EXPORT Result cuMemSetAccess(Pointer, size_t, const void*, size_t) {
  FAKE_CALL(cuMemSetAccess);
  return fake::success;
}

FAKE_EXPORT Result cuMemUnmap(Pointer pointer, size_t bytes) {
  FAKE_CALL(cuMemUnmap);
  const std::lock_guard lock(fake::memory().mutex);
  for (size_t left = bytes; left > 0;) {
    const auto found = fake::memory().allocations.find(pointer);
    if (found == fake::memory().allocations.end() || !found->second.mapped || found->second.bytes > left)
      return fake::invalid_value;
    const size_t size = found->second.bytes;
    mmap(reinterpret_cast<void*>(pointer), size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fake::memory().allocations.erase(found);
    pointer += size;
    left -= size;
  }
  return fake::success;
}

FAKE_EXPORT Result cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
  FAKE_CALL(cuMemRetainAllocationHandle);
  const std::lock_guard lock(fake::memory().mutex);
  const auto* found = fake::find(reinterpret_cast<Pointer>(address));
  if (!found || !found->second.mapped) return fake::invalid_value;
  fake::Block* block = found->second.block.get();
  auto& entry = fake::memory().handles[block];
  entry.first = found->second.block;
  ++entry.second;
  *handle = reinterpret_cast<unsigned long long>(block);
  return fake::success;
}

FAKE_EXPORT Result cuMemRelease(unsigned long long handle) {
  FAKE_CALL(cuMemRelease);
  const std::lock_guard lock(fake::memory().mutex);
  const auto found = fake::memory().handles.find(reinterpret_cast<fake::Block*>(handle));
  if (found == fake::memory().handles.end()) return fake::invalid_value;
  if (--found->second.second == 0) fake::memory().handles.erase(found);
  return fake::success;
}

// ---- what is known of an address

FAKE_EXPORT Result cuMemGetAddressRange_v2(Pointer* base, size_t* bytes, Pointer pointer) {
  FAKE_CALL(cuMemGetAddressRange_v2);
  const std::lock_guard lock(fake::memory().mutex);
  const auto* found = fake::find(pointer);
  if (!found) return fake::not_found;
  *base = found->first;
  *bytes = found->second.bytes;
  return fake::success;
}

FAKE_EXPORT Result cuPointerGetAttribute(void* value, int attribute, Pointer pointer) {
  FAKE_CALL(cuPointerGetAttribute);
  const std::lock_guard lock(fake::memory().mutex);
  const auto* found = fake::find(pointer);
  const bool pinned = !found && fake::is_pinned(pointer);
  if (!found && !pinned) return fake::invalid_value;
  switch (attribute) {
    case 2:
      *static_cast<unsigned*>(value) = pinned ? 1 : 2;
      return fake::success;
    case 7:
      *static_cast<unsigned long long*>(value) = pinned ? 0 : found->second.id;
      return fake::success;
    case 8:
      *static_cast<unsigned*>(value) = !pinned && found->second.managed;
      return fake::success;
    case 9:
      *static_cast<int*>(value) = pinned ? 0 : found->second.block->gpu;
      return fake::success;
    case 17:
      *static_cast<void**>(value) = !pinned && found->second.pooled ? &fake::memory() : nullptr;
      return fake::success;
    default:
      return fake::not_supported;
  }
}

FAKE_EXPORT Result cuPointerSetAttribute(const void*, int, Pointer pointer) {
  FAKE_CALL(cuPointerSetAttribute);
  return fake::reach(pointer, 0) ? fake::success : fake::invalid_value;
}

/// A dma-buf is a new description of the memfd. A memfd cannot begin in its middle as a dma-buf does: the
/// file position says where the range starts, which the software HCA knows.
FAKE_EXPORT Result cuMemGetHandleForAddressRange(void* handle, Pointer address, size_t bytes, int type,
                                                 unsigned long long) {
  FAKE_CALL_IN_CONTEXT(cuMemGetHandleForAddressRange);
  if (fake::setting("dma_buf") == 0) return fake::not_supported;
  if (type != 1 || address % fake::page || bytes % fake::page || bytes == 0) return fake::invalid_value;
  const std::lock_guard lock(fake::memory().mutex);
  // The range is of whole pages, and may begin before the allocation that shares its first page.
  const auto* found = fake::find(address);
  for (size_t at = 0; !found && at < fake::page; at += fake::sub_alignment) found = fake::find(address + at);
  if (!found) return fake::invalid_value;
  if (found->second.pooled || found->second.managed) return fake::not_supported;
  const uint64_t start = found->second.offset + address - found->first;
  if (start > found->second.block->bytes || bytes > found->second.block->bytes - start)
    return fake::invalid_value;
  if (found->second.mapped && address - found->first + bytes > found->second.bytes)
    return fake::invalid_value;
  char name[40];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", found->second.block->fd);
  const int fd = open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return fake::out_of_memory;
  lseek(fd, static_cast<off_t>(start), SEEK_SET);
  *static_cast<int*>(handle) = fd;
  return fake::success;
}

// ---- for tests

FAKE_EXPORT int fake_allocations() {
  const std::lock_guard lock(fake::memory().mutex);
  return static_cast<int>(fake::memory().allocations.size());
}

FAKE_EXPORT int fake_pinned() {
  const std::lock_guard lock(fake::memory().mutex);
  return static_cast<int>(fake::memory().pinned.size());
}

FAKE_EXPORT int fake_handles() {
  const std::lock_guard lock(fake::memory().mutex);
  return static_cast<int>(fake::memory().handles.size());
}
