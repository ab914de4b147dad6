#include "messaging/path.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.hpp"

namespace rdmatx {
namespace {

struct FreeInterfaces {
  void operator()(ifaddrs* list) const noexcept { ::freeifaddrs(list); }
};
using Interfaces = std::unique_ptr<ifaddrs, FreeInterfaces>;

Interfaces list_interfaces() {
  ifaddrs* list = nullptr;
  return Interfaces(::getifaddrs(&list) == 0 ? list : nullptr);
}

unsigned count_bits(const void* bytes, size_t count) {
  unsigned bits = 0;
  for (size_t i = 0; i < count; ++i)
    bits += static_cast<unsigned>(std::popcount(static_cast<const uint8_t*>(bytes)[i]));
  return bits;
}

// Length of the subnet prefix of the interface address that a GID was made of; 0 where there is none.
uint8_t prefix_of(const Gid& gid, const ifaddrs* interfaces) {
  for (const ifaddrs* entry = interfaces; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !entry->ifa_netmask) continue;
    if (entry->ifa_addr->sa_family == AF_INET && gid.is_ipv4_mapped()) {
      const auto& address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask)->sin_addr;
      if (std::memcmp(&address, gid.raw.data() + 12, 4) == 0)
        return static_cast<uint8_t>(count_bits(&mask, 4));
    } else if (entry->ifa_addr->sa_family == AF_INET6 && !gid.is_ipv4_mapped()) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in6*>(entry->ifa_netmask)->sin6_addr;
      if (std::memcmp(&address, gid.raw.data(), 16) == 0) return static_cast<uint8_t>(count_bits(&mask, 16));
    }
  }
  return 0;
}

}  // namespace

std::string Path::text() const {
  if (provider == "soft") {
    if (names_process(local.gid)) return "soft shared memory (" + device + ")";
    return "soft TCP (" + device + "), " + reason;
  }
  return device + " port " + std::to_string(local.port) + " GID " + std::to_string(local.index) + ", " +
         reason;
}

std::vector<GidCandidate> gather_candidates(const Device& device) {
  std::vector<GidCandidate> candidates;
  std::string states;
  const Interfaces interfaces = list_interfaces();
  for (int number = 1; number <= device.attributes().port_count; ++number) {
    const PortAttributes port = device.query_port(number);
    states += (states.empty() ? "" : ", ") +
              ("port " + std::to_string(number) + " is " + port_state_name(port.state));
    if (port.state != PortState::active) continue;
    for (const GidEntry& entry : device.query_gids(number)) {
      if (entry.gid.is_empty() || entry.index > 255 || candidates.size() >= HandshakeRecord::max_candidates)
        continue;
      candidates.push_back({entry.gid, entry.type, port.link_layer, static_cast<uint8_t>(number),
                            static_cast<uint8_t>(entry.index), port.lid, port.active_mtu,
                            prefix_of(entry.gid, interfaces.get())});
    }
  }
  if (candidates.empty())
    throw UnavailableError(
        "device " + device.name() + " has no address to connect from: " + states +
        "; bring its network interface up and give it an address (rdmatx doctor looks further)");
  return candidates;
}

std::array<uint8_t, 16> host_id() {
  std::array<uint8_t, 16> id{};
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  if (text.empty()) {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    text = name;
  }
  // A network namespace is a host of its own: its loopback addresses lead nowhere else.
  struct stat network{};
  if (::stat("/proc/self/ns/net", &network) == 0) text += std::to_string(network.st_ino);
  for (size_t i = 0; i < text.size(); ++i)
    id[i % id.size()] = static_cast<uint8_t>(id[i % id.size()] * 31 + static_cast<uint8_t>(text[i]));
  return id;
}

Address address_of(const GidCandidate& candidate, uint32_t queue_pair_number,
                   uint32_t packet_sequence_number) {
  Address address;
  address.queue_pair_number = queue_pair_number;
  address.packet_sequence_number = packet_sequence_number;
  address.lid = candidate.lid;
  address.port = candidate.port;
  address.gid_index = candidate.index;
  address.link_layer = candidate.link_layer;
  address.gid_type = candidate.type;
  address.mtu = candidate.mtu_bytes;
  address.gid = candidate.gid;
  return address;
}

}  // namespace rdmatx
