#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/log.hpp"
#include "base/shared_memory.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/objects.hpp"
#include "soft/peer.hpp"
#include "soft/verbs.hpp"

namespace rdmatx::soft {
namespace {

constexpr int remote_changes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int known_access =
    IBV_ACCESS_LOCAL_WRITE | remote_changes | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;

/// Waits until nobody moves data through a key that was just made invalid: for the engine in this process by
/// its locks, for peers by what they announced. False where a peer does not move on (a stopped process).
bool wait_for_users(Instance& instance, uint32_t key) {
  bool free = true;
  instance.for_each([&](QueuePair& qp) {
    std::shared_ptr<Channel> inbound;
    std::shared_ptr<Peer> peer;
    {
      std::lock_guard lock(qp.mutex);
      inbound = qp.inbound;
      peer = qp.peer;
    }
    if (inbound && peer) free &= wait_for_peer(inbound->state(), *peer, key);
  });
  return free;
}

}  // namespace

namespace {

/// 0, or the errno for a range or an access that no device takes.
int check_request(const Instance& instance, uint64_t first, size_t bytes, int access) {
  if (instance.forked()) return EOWNERDEAD;
  if (bytes == 0 || bytes > Limits::max_region_bytes || first + bytes < first) return EINVAL;
  if ((access & ~known_access) || ((access & remote_changes) && !(access & IBV_ACCESS_LOCAL_WRITE)))
    return EINVAL;
  return 0;
}

/// Enters the region into the table; `displacement` as in MemoryEntry. Null with errno where that is full.
ibv_mr* add_region(ibv_pd* base, std::unique_ptr<MemoryRegion> mr, uint64_t first, size_t bytes, int access,
                   uint64_t displacement) {
  auto* pd = own<ProtectionDomain>(base);
  const uint32_t key = pd->context->instance->memory().add(
      first, bytes, pd->number, static_cast<uint32_t>(access), mr->segment.get(), displacement);
  if (key == 0) return errno = ENOMEM, nullptr;
  mr->base.context = base->context;
  mr->base.pd = base;
  mr->base.addr = reinterpret_cast<void*>(first);
  mr->base.length = bytes;
  mr->base.handle = mr->base.lkey = mr->base.rkey = key;
  pd->children.fetch_add(1);
  return &mr.release()->base;
}

/// Maps [offset, offset + bytes) of a dma-buf; where its first byte lies is stored. Null with errno.
/// A dma-buf stands for all of itself and has no position; an ordinary memfd, which may take its place in
/// tests, tells by its position where the range begins that it stands for.
std::shared_ptr<void> map_dma_buf(int fd, uint64_t offset, size_t bytes, bool writable, std::byte** first) {
  const off_t position = std::max<off_t>(lseek(fd, 0, SEEK_CUR), 0);
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return nullptr;
  lseek(fd, position, SEEK_SET);
  const uint64_t begin = static_cast<uint64_t>(position) + offset;
  if (offset + bytes < offset || begin + bytes > static_cast<uint64_t>(end)) return errno = EINVAL, nullptr;
  const uint64_t within_page = begin % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const size_t size = bytes + within_page;
  void* mapped = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                      static_cast<off_t>(begin - within_page));
  if (mapped == MAP_FAILED) {
    if (errno == ENODEV || errno == EPERM) errno = EOPNOTSUPP;  // not for processors
    return nullptr;
  }
  *first = static_cast<std::byte*>(mapped) + within_page;
  return {mapped, [size](void* memory) { munmap(memory, size); }};
}

}  // namespace

ibv_mr* reg_mr(ibv_pd* base, void* address, size_t bytes, int access) try {
  Instance& instance = *own<ProtectionDomain>(base)->context->instance;
  const auto first = reinterpret_cast<uint64_t>(address);
  if (const int error = check_request(instance, first, bytes, access)) return errno = error, nullptr;
  auto segment = find_segment(address, bytes);
  if (!segment && !instance.mappings().cover(first, bytes, access & IBV_ACCESS_LOCAL_WRITE))
    return errno = EFAULT, nullptr;
  auto mr = std::make_unique<MemoryRegion>();
  mr->segment = std::move(segment);
  return add_region(base, std::move(mr), first, bytes, access, 0);
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

// As the kernel has it, the range lies alike within its pages in the dma-buf and at its addresses.
ibv_mr* reg_dmabuf_mr(ibv_pd* base, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) try {
  Instance& instance = *own<ProtectionDomain>(base)->context->instance;
  if (const int error = check_request(instance, iova, bytes, access)) return errno = error, nullptr;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (offset % page != iova % page) return errno = EINVAL, nullptr;
  auto mr = std::make_unique<MemoryRegion>();
  std::byte* mapped = nullptr;
  mr->mapping = map_dma_buf(fd, offset, bytes, access & IBV_ACCESS_LOCAL_WRITE, &mapped);
  if (!mr->mapping) return nullptr;
  return add_region(base, std::move(mr), iova, bytes, access, reinterpret_cast<uint64_t>(mapped) - iova);
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

int dereg_mr(ibv_mr* base) {
  auto* mr = own<MemoryRegion>(base);
  auto* pd = own<ProtectionDomain>(base->pd);
  Instance& instance = *pd->context->instance;
  if (instance.forked()) return 0;
  instance.memory().remove(base->lkey);
  if (wait_for_users(instance, base->lkey))
    instance.memory().release(base->lkey);
  else
    log(LogLevel::warning,
        "a peer that does not run holds a deregistered region; do not reuse its memory yet");
  pd->children.fetch_sub(1);
  delete mr;
  return 0;
}

}  // namespace rdmatx::soft
