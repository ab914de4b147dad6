#include "base/memory_owner.hpp"

#include <cstdint>
#include <utility>

namespace rdmatx {

bool MemoryOwner::holds(const void* data, size_t bytes) const noexcept {
  const auto first = reinterpret_cast<uintptr_t>(base_);
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address >= first && address - first <= bytes_ && bytes <= bytes_ - (address - first);
}

bool MemoryOwner::watch(const std::shared_ptr<Watcher>& watcher) {
  const std::lock_guard lock(mutex_);
  if (!alive()) return false;
  for (const auto& known : watchers_)
    if (!known.owner_before(watcher) && !watcher.owner_before(known)) return true;
  std::erase_if(watchers_, [](const auto& known) { return known.expired(); });
  watchers_.push_back(watcher);
  return true;
}

void MemoryOwner::die() noexcept {
  if (!alive_.exchange(false, std::memory_order_acq_rel)) return;
  // In a child the lock may be held by a thread that is not there.
  if (!of_this_process()) return;
  std::vector<std::weak_ptr<Watcher>> told;
  {
    const std::lock_guard lock(mutex_);
    told.swap(watchers_);
  }
  for (const auto& watcher : told)
    if (const auto strong = watcher.lock()) strong->owner_died(*this);
}

}  // namespace rdmatx
