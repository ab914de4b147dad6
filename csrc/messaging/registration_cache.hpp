#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/memory_owner.hpp"
#include "rdma/memory_region.hpp"

namespace rdmatx {

/// What a registration cache did since it was made, and what it holds.
struct RegistrationStats {
  uint64_t hits = 0;       ///< operations that found their memory registered
  uint64_t misses = 0;     ///< operations that registered it, for themselves and for later ones
  uint64_t uncached = 0;   ///< operations on memory that is not kept registered
  uint64_t evictions = 0;  ///< registrations given up for room, or since their memory went
  uint64_t entries = 0;
  uint64_t pinned_bytes = 0;
  uint64_t limit_bytes = 0;

  RegistrationStats& operator+=(const RegistrationStats& other) noexcept {
    hits += other.hits;
    misses += other.misses;
    uncached += other.uncached;
    evictions += other.evictions;
    entries += other.entries;
    pinned_bytes += other.pinned_bytes;
    limit_bytes += other.limit_bytes;
    return *this;
  }
};

/// Which memory stays registered after the operation that registered it.
struct RegistrationPolicy {
  bool enabled = false;
  /// Also what peers were let write to (receives): they could write there until it is evicted.
  bool remote = false;
  uint64_t limit_bytes = 0;

  /// From RDMATX_REGISTRATION_CACHE ("0", "local", "1"; else "local" where registering is dear) and
  /// RDMATX_PIN_LIMIT (bytes; else half of RLIMIT_MEMLOCK, at most a quarter of the memory). Throws
  /// UsageError for other words.
  static RegistrationPolicy from_environment(const Device& device);
};

/// Registrations of one protection domain that outlive the operations they were made for.
///
/// Kept by the owner of the memory, never by its address: what dies takes its registrations along before its
/// memory can be anything else's, and an owner that is found anew is another one. Local registrations are of
/// all that the owner has where that is not far more than what is asked for, so that one serves all views;
/// those that let peers write are of what was asked for alone. Registrations that no operation uses are given
/// up, the least recently used first, where `limit_bytes` are pinned or the system has no more.
///
/// Owns the registrations; an operation shares one till it ends. Any thread, finalizers included: its one
/// lock is a leaf that is never held while something is registered, freed or called.
class RDMATX_API RegistrationCache final : public MemoryOwner::Watcher,
                                           public std::enable_shared_from_this<RegistrationCache> {
 public:
  static std::shared_ptr<RegistrationCache> create(std::shared_ptr<ProtectionDomain> domain,
                                                   const RegistrationPolicy& policy);
  ~RegistrationCache();
  /// The cache of a domain, or null.
  static std::shared_ptr<RegistrationCache> of(const ProtectionDomain& domain);
  /// Whether any cache of this process keeps anything: else nobody needs to look for owners.
  static bool any_enabled() noexcept;

  /// A registration of at least [data, data + bytes) that grants `access`. Null where it is not to be kept:
  /// then the caller registers for itself.
  std::shared_ptr<MemoryRegion> acquire(const std::shared_ptr<MemoryOwner>& owner, std::byte* data,
                                        uint64_t bytes, Access access, uint64_t max_region_bytes);
  /// One that is not kept. Where the system has no memory to pin, what is kept and unused makes room.
  std::shared_ptr<MemoryRegion> create_uncached(std::byte* data, uint64_t bytes, Access access,
                                                std::shared_ptr<void> keepalive);
  /// No later operation gets it: the operation that had it did not end well, and a peer may still write
  /// there.
  void discard(const std::shared_ptr<MemoryRegion>& region) noexcept;
  /// Gives up everything for good. Idempotent.
  void close() noexcept;
  RegistrationStats stats() const;

  void owner_died(const MemoryOwner& owner) noexcept override;

 private:
  struct Entry {
    std::shared_ptr<MemoryOwner> owner;
    std::shared_ptr<MemoryRegion> region;
  };
  using Entries = std::list<Entry>;  // the most recently used first
  using Removed = std::vector<Entry>;
  struct Range {
    std::byte* data;
    uint64_t bytes;
  };

  RegistrationCache(std::shared_ptr<ProtectionDomain> domain, const RegistrationPolicy& policy)
      : domain_(std::move(domain)), policy_(policy) {}
  std::shared_ptr<MemoryRegion> register_memory(Range range, Access access, std::shared_ptr<void> keepalive);
  // Under the lock. What is removed is freed by the caller, without the lock.
  std::shared_ptr<MemoryRegion> find(const MemoryOwner& owner, Range range, Access access);
  std::shared_ptr<MemoryRegion> insert(const std::shared_ptr<MemoryOwner>& owner,
                                       std::shared_ptr<MemoryRegion> region, Removed& removed);
  void remove(Entries::iterator entry, Removed& removed);
  void make_room(uint64_t bytes, Removed& removed);

  const std::shared_ptr<ProtectionDomain> domain_;
  const RegistrationPolicy policy_;
  const int generation_ = process_generation();
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<const MemoryOwner*, std::vector<Entries::iterator>> by_owner_;
  uint64_t pinned_bytes_ = 0;
  bool closed_ = false;
  RegistrationStats stats_;
};

}  // namespace rdmatx
