#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "messaging/gid_scorer.hpp"
#include "messaging/handshake.hpp"
#include "rdma/address.hpp"
#include "rdma/device.hpp"

namespace rdmatx {

/// How the two queue pairs of a connection reach each other, as the handshake settled it.
struct RDMATX_API Path {
  GidCandidate local;
  GidCandidate remote;
  std::string provider;
  std::string device;
  /// Of the local port.
  uint32_t max_message_bytes = 0;
  std::string reason;

  /// "soft shared memory (soft0)", "soft TCP (soft0), RoCE v2 … on one subnet, MTU 4096", "rxe0 port 1 GID 1,
  /// RoCE v2 ::ffff:10.0.0.1 to ::ffff:10.0.0.2, MTU 4096".
  std::string text() const;
};

/// Every address of every ACTIVE port of a device. Throws UnavailableError where there is none.
std::vector<GidCandidate> gather_candidates(const Device& device);

/// The same on all processes of one host and network namespace until it boots again.
std::array<uint8_t, 16> host_id();

/// What a queue pair is told about its peer.
Address address_of(const GidCandidate& candidate, uint32_t queue_pair_number,
                   uint32_t packet_sequence_number);

}  // namespace rdmatx
