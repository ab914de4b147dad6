#pragma once

#include <infiniband/verbs.h>

#include <mutex>
#include <optional>
#include <vector>

namespace rdmatx::soft {

/// The port's table of GIDs: the identity that processes of the same host and network namespace reach each
/// other by, then the host's IP addresses as RoCE v2 has them. An index keeps its address: what an interface
/// gains is appended, what it loses leaves a hole. Any thread.
class GidTable {
 public:
  GidTable(const std::optional<ibv_gid>& identity, bool with_addresses);
  /// Looks at the interfaces again; the length of the table.
  int refresh();
  /// Nothing where there is a hole, or no such index.
  std::optional<ibv_gid> at(uint32_t index) const;
  /// Whether it is one of this host's addresses.
  bool holds(const ibv_gid& gid) const;

 private:
  struct Entry {
    ibv_gid gid;
    bool present;
  };
  const bool with_addresses_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  size_t fixed_ = 0;  // entries that are no addresses
};

}  // namespace rdmatx::soft
