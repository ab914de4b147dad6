#include "messaging/gid_scorer.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace rdmatx {
namespace {

bool is_loopback(const Gid& gid) {
  if (gid.is_ipv4_mapped()) return gid.raw[12] == 127;
  static constexpr Gid loopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  return gid == loopback;
}

bool equal_bits(const Gid& a, const Gid& b, size_t first_byte, unsigned bits) {
  for (size_t i = first_byte; i < 16 && bits > 0; ++i) {
    const unsigned here = std::min(bits, 8u);
    const auto mask = static_cast<uint8_t>(0xff00 >> here);
    if ((a.raw[i] & mask) != (b.raw[i] & mask)) return false;
    bits -= here;
  }
  return true;
}

// A link-local address says nothing about the subnet: every link has fe80::/64.
bool on_one_subnet(const GidCandidate& a, const GidCandidate& b) {
  if (a.link_layer == LinkLayer::infiniband) return equal_bits(a.gid, b.gid, 0, 64);
  if (a.gid.is_link_local() || b.gid.is_link_local()) return false;
  if (a.gid.is_ipv4_mapped() != b.gid.is_ipv4_mapped()) return false;
  const bool four = a.gid.is_ipv4_mapped();
  const unsigned assumed = four ? 24 : 64;
  const unsigned bits =
      std::max(a.prefix_bits ? a.prefix_bits : assumed, b.prefix_bits ? b.prefix_bits : assumed);
  return equal_bits(a.gid, b.gid, four ? 12 : 0, bits);
}

// An address that two hosts both have is each one's own (a bridge for containers): it leads nowhere.
bool usable(const GidCandidate& candidate, std::span<const GidCandidate> other_side, bool same_host) {
  if (candidate.gid.is_empty()) return false;
  return same_host || (!is_loopback(candidate.gid) &&
                       std::none_of(other_side.begin(), other_side.end(),
                                    [&](const GidCandidate& other) { return other.gid == candidate.gid; }));
}

bool can_pair(const GidCandidate& a, const GidCandidate& b) {
  if (a.type != b.type || a.link_layer != b.link_layer) return false;
  if (a.link_layer == LinkLayer::infiniband) return true;
  if (names_process(a.gid) || names_process(b.gid)) return equal_bits(a.gid, b.gid, 0, 64);
  // A link-local address reaches only its own link, and a loopback address only itself.
  return a.gid.is_link_local() == b.gid.is_link_local() && is_loopback(a.gid) == is_loopback(b.gid);
}

// The greater tuple wins; the places come last and negated, so that the lowest wins.
using Score = std::tuple<bool, bool, bool, bool, uint32_t, int, int>;

Score score(const GidCandidate& a, const GidCandidate& b, size_t place_a, size_t place_b) {
  return {names_process(a.gid),
          on_one_subnet(a, b),
          a.type != GidType::roce_v1,
          !a.gid.is_link_local(),
          std::min(a.mtu_bytes, b.mtu_bytes),
          -static_cast<int>(place_a + place_b),
          -static_cast<int>(place_a)};
}

std::string reason_for(const GidCandidate& a, const GidCandidate& b, bool same_subnet) {
  std::string text = std::string(gid_type_name(a.type)) + " " + a.gid.text() + " to " + b.gid.text() + ", ";
  if (same_subnet) {
    text += "on one subnet";
  } else if (a.gid.is_link_local()) {
    text += "link-local, since nothing wider pairs up";
  } else {
    text += "on different subnets, so a router has to lie between";
  }
  text += ", MTU " + std::to_string(std::min(a.mtu_bytes, b.mtu_bytes));
  if (a.mtu_bytes != b.mtu_bytes) {
    text += " (the lesser of " + std::to_string(a.mtu_bytes) + " and " + std::to_string(b.mtu_bytes) + ")";
  }
  return text;
}

}  // namespace

bool names_process(const Gid& gid) {
  return gid.raw[0] == 0xfd && gid.raw[1] == 'r' && gid.raw[2] == 'd' && gid.raw[3] == 'x';
}

std::optional<GidChoice> choose_gids(std::span<const GidCandidate> local,
                                     std::span<const GidCandidate> remote, bool same_host) {
  std::optional<GidChoice> best;
  Score best_score;
  for (size_t i = 0; i < local.size(); ++i) {
    if (!usable(local[i], remote, same_host)) continue;
    for (size_t j = 0; j < remote.size(); ++j) {
      if (!usable(remote[j], local, same_host) || !can_pair(local[i], remote[j])) continue;
      const Score here = score(local[i], remote[j], i, j);
      if (best && here <= best_score) continue;
      best_score = here;
      best = GidChoice{i, j, std::get<4>(here), std::get<1>(here), {}};
    }
  }
  if (best) best->reason = reason_for(local[best->local], remote[best->remote], best->same_subnet);
  return best;
}

std::string explain_no_pair(std::span<const GidCandidate> local, std::span<const GidCandidate> remote,
                            bool same_host) {
  const auto list = [](std::span<const GidCandidate> side) {
    std::string text;
    for (const GidCandidate& candidate : side) {
      if (candidate.gid.is_empty()) continue;
      text += (text.empty() ? "" : ", ") + std::string(gid_type_name(candidate.type)) + " " +
              candidate.gid.text();
    }
    return text.empty() ? std::string("none") : text;
  };
  std::string text = "no address of this side pairs with one of the peer (here: " + list(local) +
                     "; there: " + list(remote) + ")";
  const auto only_loopback = [](std::span<const GidCandidate> side) {
    return std::all_of(side.begin(), side.end(), [](const GidCandidate& candidate) {
      return candidate.gid.is_empty() || candidate.gid.is_link_local() || is_loopback(candidate.gid);
    });
  };
  if (!same_host && (only_loopback(local) || only_loopback(remote)))
    return text +
           ": a device on the loopback interface reaches only its own host; use a device on a network "
           "interface that both hosts share";
  return text + ": give both ports an address of one kind, on one subnet (rdmatx devices lists them)";
}

}  // namespace rdmatx
