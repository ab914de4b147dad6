#include "messaging/registration_cache.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace rdmatx {
namespace {

// A registration is of all that its owner has where that is at most so much, or so many times what is asked
// for.
constexpr uint64_t whole_owner_bytes = uint64_t{64} << 20;
constexpr uint64_t whole_owner_factor = 4;
// Devices have hundreds of thousands, processes have use for few.
constexpr size_t max_entries = 4096;
constexpr size_t max_entries_of_one_owner = 64;

struct Registry {
  std::mutex mutex;
  std::map<const ProtectionDomain*, std::weak_ptr<RegistrationCache>> caches;
};

Registry& registry() {
  static auto* all = new Registry;  // outlives every static destructor
  return *all;
}

std::atomic<int> enabled_caches{0};

uint64_t default_limit() {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) != 0 || locked.rlim_cur == RLIM_INFINITY) return memory / 4;
  return std::min<uint64_t>(locked.rlim_cur / 2, memory / 4);
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

bool covers(const MemoryRegion& region, const std::byte* data, uint64_t bytes) {
  const auto first = region.remote_address();
  const auto address = reinterpret_cast<uint64_t>(data);
  return address >= first && address - first <= region.bytes() && bytes <= region.bytes() - (address - first);
}

bool lets_peers_in(Access access) {
  return (access & (Access::remote_read | Access::remote_write | Access::remote_atomic)) != Access::none;
}

}  // namespace

RegistrationPolicy RegistrationPolicy::from_environment(const Device& device) {
  RegistrationPolicy policy;
  // The software HCA pins nothing: a registration costs it little more than finding the memory's owner does.
  policy.enabled = device.attributes().provider != "soft";
  if (const char* text = variable("RDMATX_REGISTRATION_CACHE")) {
    const std::string word = text;
    if (word != "0" && word != "1" && word != "local")
      throw UsageError(
          "RDMATX_REGISTRATION_CACHE is \"" + word +
          "\", and should be 0 (every operation registers its memory for itself), local "
          "(memory stays registered that no peer was let write to), or 1 (the memory of receives too)");
    policy.enabled = word != "0";
    policy.remote = word == "1";
  }
  policy.limit_bytes = default_limit();
  if (const char* text = variable("RDMATX_PIN_LIMIT")) {
    char* end = nullptr;
    errno = 0;
    policy.limit_bytes = std::strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || *text < '0' || *text > '9')
      throw UsageError(std::string("RDMATX_PIN_LIMIT is \"") + text +
                       "\", and should be a number of bytes: how much memory may stay registered");
  }
  return policy;
}

std::shared_ptr<RegistrationCache> RegistrationCache::create(std::shared_ptr<ProtectionDomain> domain,
                                                             const RegistrationPolicy& policy) {
  std::shared_ptr<RegistrationCache> cache(new RegistrationCache(std::move(domain), policy));
  if (policy.enabled) enabled_caches.fetch_add(1);
  const std::lock_guard lock(registry().mutex);
  registry().caches[cache->domain_.get()] = cache;
  return cache;
}

RegistrationCache::~RegistrationCache() {
  if (policy_.enabled) enabled_caches.fetch_sub(1);
  if (generation_ != process_generation()) return;  // a child's copy: its locks may be anybody's
  close();
  const std::lock_guard lock(registry().mutex);
  registry().caches.erase(domain_.get());
}

std::shared_ptr<RegistrationCache> RegistrationCache::of(const ProtectionDomain& domain) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().caches.find(&domain);
  return found == registry().caches.end() ? nullptr : found->second.lock();
}

bool RegistrationCache::any_enabled() noexcept {
  return enabled_caches.load(std::memory_order_relaxed) > 0;
}

std::shared_ptr<MemoryRegion> RegistrationCache::acquire(const std::shared_ptr<MemoryOwner>& owner,
                                                         std::byte* data, uint64_t bytes, Access access,
                                                         uint64_t max_region_bytes) {
  if (!policy_.enabled || !owner || bytes == 0 || bytes > max_region_bytes || !owner->holds(data, bytes) ||
      (lets_peers_in(access) && !policy_.remote))
    return nullptr;
  Range range{data, bytes};
  if (!lets_peers_in(access) && owner->bytes() <= std::min(max_region_bytes, policy_.limit_bytes / 2) &&
      (owner->bytes() <= whole_owner_bytes || owner->bytes() / whole_owner_factor <= bytes))
    range = {owner->base(), owner->bytes()};
  Removed removed;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    if (auto found = find(*owner, {data, bytes}, access)) {
      ++stats_.hits;
      return found;
    }
    make_room(range.bytes, removed);
    if (pinned_bytes_ + range.bytes > policy_.limit_bytes) return nullptr;  // all of it is in use
  }
  removed.clear();
  if (!owner->watch(shared_from_this())) return nullptr;
  auto region = register_memory(range, access, {});
  {
    const std::lock_guard lock(mutex_);
    ++stats_.misses;
    // An owner dies first and is looked for here then: whichever of the two comes second sees the other.
    if (!closed_ && owner->alive()) region = insert(owner, std::move(region), removed);
  }
  return region;
}

std::shared_ptr<MemoryRegion> RegistrationCache::create_uncached(std::byte* data, uint64_t bytes,
                                                                 Access access,
                                                                 std::shared_ptr<void> keepalive) {
  auto region = register_memory({data, bytes}, access, std::move(keepalive));
  const std::lock_guard lock(mutex_);
  ++stats_.uncached;
  return region;
}

std::shared_ptr<MemoryRegion> RegistrationCache::register_memory(Range range, Access access,
                                                                 std::shared_ptr<void> keepalive) {
  try {
    return MemoryRegion::create(domain_, range.data, range.bytes, access, keepalive);
  } catch (const VerbsError& error) {
    if (error.code() != ENOMEM) throw;
  }
  Removed removed;
  {
    const std::lock_guard lock(mutex_);
    make_room(UINT64_MAX, removed);
  }
  removed.clear();
  return MemoryRegion::create(domain_, range.data, range.bytes, access, std::move(keepalive));
}

std::shared_ptr<MemoryRegion> RegistrationCache::find(const MemoryOwner& owner, Range range, Access access) {
  const auto found = by_owner_.find(&owner);
  if (found == by_owner_.end()) return nullptr;
  for (const Entries::iterator entry : found->second) {
    if (!has_access(entry->region->access(), access) || !covers(*entry->region, range.data, range.bytes))
      continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->region;
  }
  return nullptr;
}

std::shared_ptr<MemoryRegion> RegistrationCache::insert(const std::shared_ptr<MemoryOwner>& owner,
                                                        std::shared_ptr<MemoryRegion> region,
                                                        Removed& removed) {
  const Range range{static_cast<std::byte*>(region->address()), region->bytes()};
  // Another thread was faster: one is enough.
  if (auto found = find(*owner, range, region->access())) {
    removed.push_back({nullptr, std::move(region)});
    return found;
  }
  std::vector<Entries::iterator> superseded;
  const auto known = by_owner_.find(owner.get());
  if (known != by_owner_.end()) {
    for (const Entries::iterator entry : known->second)
      if (has_access(region->access(), entry->region->access()) &&
          covers(*region, static_cast<std::byte*>(entry->region->address()), entry->region->bytes()))
        superseded.push_back(entry);
    if (superseded.empty() && known->second.size() >= max_entries_of_one_owner)
      superseded.push_back(known->second.front());
  }
  for (const Entries::iterator entry : superseded) remove(entry, removed);
  entries_.push_front({owner, region});
  by_owner_[owner.get()].push_back(entries_.begin());
  pinned_bytes_ += region->bytes();
  return region;
}

void RegistrationCache::remove(Entries::iterator entry, Removed& removed) {
  const auto owned = by_owner_.find(entry->owner.get());
  std::erase(owned->second, entry);
  if (owned->second.empty()) by_owner_.erase(owned);
  pinned_bytes_ -= entry->region->bytes();
  ++stats_.evictions;
  removed.push_back(std::move(*entry));
  entries_.erase(entry);
}

void RegistrationCache::make_room(uint64_t bytes, Removed& removed) {
  const auto enough = [&] {
    return entries_.size() < max_entries && bytes <= policy_.limit_bytes &&
           pinned_bytes_ <= policy_.limit_bytes - bytes;
  };
  for (auto entry = entries_.end(); entry != entries_.begin() && !enough();) {
    --entry;
    // New shares are taken under the lock only: one that is not shared now is not used.
    if (entry->region.use_count() > 1) continue;
    const auto unused = entry++;
    remove(unused, removed);
  }
}

void RegistrationCache::discard(const std::shared_ptr<MemoryRegion>& region) noexcept {
  Removed removed;
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->region != region) continue;
    remove(entry, removed);
    break;  // the caller has a share: nothing is freed here
  }
}

void RegistrationCache::owner_died(const MemoryOwner& owner) noexcept {
  Removed removed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_owner_.find(&owner);
    if (found == by_owner_.end()) return;
    const std::vector<Entries::iterator> owned = found->second;
    for (const Entries::iterator entry : owned) remove(entry, removed);
  }
}

void RegistrationCache::close() noexcept {
  Entries given_up;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    given_up.swap(entries_);
    by_owner_.clear();
    pinned_bytes_ = 0;
  }
}

RegistrationStats RegistrationCache::stats() const {
  const std::lock_guard lock(mutex_);
  RegistrationStats stats = stats_;
  stats.entries = entries_.size();
  stats.pinned_bytes = pinned_bytes_;
  stats.limit_bytes = policy_.enabled ? policy_.limit_bytes : 0;
  return stats;
}

}  // namespace rdmatx
