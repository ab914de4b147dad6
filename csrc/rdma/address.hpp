#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rdma/types.hpp"

namespace rdmatx {

/// What a peer must know to connect to a queue pair of ours. A plain value.
///
/// Its bytes (version 1) are fixed and big-endian:
///   0 "rdxa" · 4 version u8 · 5 zero u8 · 6 total bytes u16 (40) · 8 queue pair number u32 · 12 packet
///   sequence number u32 · 16 lid u16 · 18 port u8 · 19 link layer u8 · 20 GID index u8 · 21 GID type u8 · 22
///   MTU code u8 · 23 zero u8 · 24 GID, 16 bytes
struct RDMATX_API Address {
  static constexpr size_t encoded_bytes = 40;
  static constexpr uint8_t version = 1;

  /// 24 bits each.
  uint32_t queue_pair_number = 0;
  uint32_t packet_sequence_number = 0;
  uint16_t lid = 0;
  uint8_t port = 1;
  uint8_t gid_index = 0;
  LinkLayer link_layer = LinkLayer::unspecified;
  GidType gid_type = GidType::infiniband;
  /// The port's active MTU in bytes; both sides use the lesser.
  uint32_t mtu = 1024;
  Gid gid;

  /// Throws UsageError where a field is out of its range.
  std::vector<std::byte> to_bytes() const;
  /// Throws UsageError for anything but one whole, valid address of a known version.
  static Address from_bytes(std::span<const std::byte> bytes);
  /// "qp 17 at fe80::1 (port 1)".
  std::string text() const;
  friend bool operator==(const Address&, const Address&) = default;
};

}  // namespace rdmatx
