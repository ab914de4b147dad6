#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/export.hpp"
#include "messaging/protocol.hpp"

namespace rdmatx {

/// What others may do with a region, as bits of `RemoteKey::access`.
struct RemoteAccess {
  static constexpr uint16_t read = 1;
  static constexpr uint16_t write = 2;
  static constexpr uint16_t atomic = 4;
};

/// What a peer needs to reach a region of ours: address, length, what it may do, and a key for each device
/// that the region is registered with. A plain value; it grants nothing by itself once the region is closed.
struct RDMATX_API RemoteKey {
  static constexpr uint16_t version = 2;
  static constexpr uint16_t version_with_pieces = 3;
  static constexpr size_t max_pieces = 65536;
  static constexpr size_t wire_bytes(size_t keys) noexcept { return 29 + 4 * keys; }

  uint64_t address = 0;
  uint64_t length = 0;
  uint16_t access = 0;
  uint8_t key_count = 0;
  RailKeys keys{};  ///< by the devices of the region's context
  /// Of a region over several registrations, one behind the other (a GPU's memory): all of them; else none.
  struct Piece {
    uint64_t bytes = 0;
    RailKeys keys{};
    bool operator==(const Piece&) const = default;
  };
  std::vector<Piece> pieces;

  bool operator==(const RemoteKey&) const = default;

  std::vector<std::byte> to_bytes() const;
  /// Throws UsageError where the bytes are no key, are damaged, or are of another version.
  static RemoteKey from_bytes(std::span<const std::byte> bytes);

  /// Throws UsageError where `bytes` bytes at `offset` are not within the region, or `needed` is not granted.
  void check(uint64_t offset, uint64_t bytes, uint16_t needed, const char* operation) const;
};

}  // namespace rdmatx
