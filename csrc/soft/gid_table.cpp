#include "soft/gid_table.hpp"

#include <algorithm>

#include "soft/sockets.hpp"

namespace rdmatx::soft {

GidTable::GidTable(const std::optional<ibv_gid>& identity, bool with_addresses)
    : with_addresses_(with_addresses) {
  if (identity) entries_.push_back({*identity, true});
  fixed_ = entries_.size();
  refresh();
}

int GidTable::refresh() {
  const std::vector<ibv_gid> found = with_addresses_ ? local_addresses() : std::vector<ibv_gid>{};
  const std::lock_guard lock(mutex_);
  for (size_t i = fixed_; i < entries_.size(); ++i)
    entries_[i].present = std::any_of(found.begin(), found.end(),
                                      [&](const ibv_gid& gid) { return equal(gid, entries_[i].gid); });
  for (const ibv_gid& gid : found) {
    const auto known = [&](const Entry& entry) { return equal(entry.gid, gid); };
    if (entries_.size() < 256 && std::none_of(entries_.begin(), entries_.end(), known))
      entries_.push_back({gid, true});
  }
  return static_cast<int>(entries_.size());
}

std::optional<ibv_gid> GidTable::at(uint32_t index) const {
  const std::lock_guard lock(mutex_);
  if (index >= entries_.size() || !entries_[index].present) return std::nullopt;
  return entries_[index].gid;
}

bool GidTable::holds(const ibv_gid& gid) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.present && equal(entry.gid, gid); });
}

}  // namespace rdmatx::soft
