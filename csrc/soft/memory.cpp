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

ibv_mr* reg_mr(ibv_pd* base, void* address, size_t bytes, int access) try {
  auto* pd = own<ProtectionDomain>(base);
  Instance& instance = *pd->context->instance;
  if (instance.forked()) return errno = EOWNERDEAD, nullptr;
  const auto first = reinterpret_cast<uint64_t>(address);
  if (bytes == 0 || bytes > Limits::max_region_bytes || first + bytes < first) return errno = EINVAL, nullptr;
  if ((access & ~known_access) || ((access & remote_changes) && !(access & IBV_ACCESS_LOCAL_WRITE)))
    return errno = EINVAL, nullptr;
  auto segment = find_segment(address, bytes);
  if (!segment && !instance.mappings().cover(first, bytes, access & IBV_ACCESS_LOCAL_WRITE))
    return errno = EFAULT, nullptr;
  auto* mr = new MemoryRegion;
  const uint32_t key =
      instance.memory().add(first, bytes, pd->number, static_cast<uint32_t>(access), segment.get());
  if (key == 0) {
    delete mr;
    return errno = ENOMEM, nullptr;
  }
  mr->segment = std::move(segment);
  mr->base.context = base->context;
  mr->base.pd = base;
  mr->base.addr = address;
  mr->base.length = bytes;
  mr->base.handle = mr->base.lkey = mr->base.rkey = key;
  pd->children.fetch_add(1);
  return &mr->base;
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

ibv_mr* reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return errno = EOPNOTSUPP, nullptr;
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
