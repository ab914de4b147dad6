#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "rdma/types.hpp"

namespace rdmatx {

/// One address a side could be reached at: an entry of the GID table of an ACTIVE port.
struct GidCandidate {
  Gid gid;
  GidType type = GidType::infiniband;
  LinkLayer link_layer = LinkLayer::unspecified;
  uint8_t port = 1;
  uint8_t index = 0;
  uint16_t lid = 0;
  uint32_t mtu_bytes = 1024;
  /// Length of the subnet's prefix in bits of the address's own family (24 for 10.0.0.1/24); 0 where unknown.
  uint8_t prefix_bits = 0;

  bool operator==(const GidCandidate&) const = default;
};

/// Which pair of addresses a connection uses, and why.
struct GidChoice {
  size_t local = 0;
  size_t remote = 0;
  uint32_t mtu_bytes = 0;  ///< the lesser of both
  bool same_subnet = false;
  std::string reason;
};

/// Whether a GID is one of the software HCA's that are no IP addresses: it names a process, and in its first
/// half the host and network namespace, which nothing leaves (docs/software-hca.md).
bool names_process(const Gid& gid);

/// Chooses the pair of addresses for a connection; pure logic. In this order: GIDs that name processes of one
/// host and network namespace; a pair on one subnet; RoCE v2 before v1; an IPv4-mapped or global address
/// before a link-local one; the greater MTU; then the lowest places in both tables. Holes are skipped, and so
/// is an address that two hosts both have; loopback addresses serve within a host only; types and link layers
/// must agree. Nothing where no pair can work: `reason` of `explain_no_pair` says why.
std::optional<GidChoice> choose_gids(std::span<const GidCandidate> local,
                                     std::span<const GidCandidate> remote, bool same_host);

/// Why choose_gids() found nothing, as a sentence with what to do.
std::string explain_no_pair(std::span<const GidCandidate> local, std::span<const GidCandidate> remote,
                            bool same_host);

}  // namespace rdmatx
