#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "soft/gid_table.hpp"
#include "soft/mappings.hpp"
#include "soft/memory_table.hpp"
#include "soft/objects.hpp"

namespace rdmatx::soft {

class Wire;
class Peer;

/// How payloads may travel (RDMATX_SOFT_WIRE): automatic takes what is fastest, and TCP between hosts.
enum class WireChoice { automatic, shared_memory, cross_memory_attach, tcp };

/// The software HCA of one process: its identity, its registered memory, its queue pairs and its background
/// thread. Lives from the first open device to the last; a new life has a new identity.
class Instance : public std::enable_shared_from_this<Instance> {
 public:
  /// The living instance, or a new one. Throws Error where the system refuses memory, a socket or a thread.
  static std::shared_ptr<Instance> acquire();
  ~Instance();

  uint64_t id() const noexcept { return id_; }
  GidTable& gids() noexcept { return gids_; }
  /// Whether a GID names an identity, of whichever host, and not an IP address.
  static bool names_identity(const ibv_gid& gid) noexcept;
  /// The identity a GID names; 0 where it is no GID of a software HCA on this host.
  static uint64_t identity_of(const ibv_gid& gid) noexcept;
  /// True in a child of fork(), where nothing of the parent's may be used.
  bool forked() const noexcept;

  MemoryTable& memory() noexcept { return *memory_; }
  const Mappings& mappings() const noexcept { return mappings_; }
  Wire& wire() noexcept { return *wire_; }
  WireChoice wire_choice() const noexcept { return wire_choice_; }

  uint32_t next_number() noexcept { return next_number_.fetch_add(1) & 0xffffff; }
  /// Gives the queue pair its number. False where all are taken.
  bool add(QueuePair* qp);
  void remove(QueuePair* qp);
  /// Calls `use(QueuePair&)` for each queue pair; none is destroyed meanwhile.
  template <class Use>
  void for_each(Use use) {
    std::shared_lock lock(registry_);
    for (auto& [number, qp] : queue_pairs_) use(*qp);
  }
  /// Calls `use(QueuePair&)` for the one with this number, if there is one.
  template <class Use>
  bool with(uint32_t number, Use use) {
    std::shared_lock lock(registry_);
    auto found = queue_pairs_.find(number);
    if (found == queue_pairs_.end()) return false;
    use(*found->second);
    return true;
  }

 private:
  Instance();
  uint64_t id_;
  uint64_t generation_;
  WireChoice wire_choice_;
  std::shared_ptr<MemoryTable> memory_;
  Mappings mappings_;
  GidTable gids_;
  std::atomic<uint32_t> next_number_;  // of protection domains
  uint16_t next_queue_pair_;
  std::shared_mutex registry_;
  std::unordered_map<uint32_t, QueuePair*> queue_pairs_;
  std::unique_ptr<Wire> wire_;  // last: its thread uses all of the above
};

}  // namespace rdmatx::soft
