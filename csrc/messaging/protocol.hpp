#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "messaging/credits.hpp"

// What queue pairs of two connections say to each other; docs/wire-protocol.md describes it. Both sides are
// little-endian hosts (x86-64, AArch64), so headers are written as they lie in memory.

namespace rdmatx {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "message headers are little-endian on the wire");

enum class MessageKind : uint8_t {
  eager = 1,    ///< tag, bytes, peer_id = checksum where asked for; the payload follows the header
  request = 2,  ///< request to send: tag, bytes, id of the send
  clear = 3,    ///< clear to send: id of the send, peer_id of the receive; `count` RemoteParts follow
  finish = 4,   ///< all was written: id of the receive, peer_id = checksum where asked for
  refuse = 5,  ///< does not fit: id of the send (0: it was eager), tag, bytes sent, peer_id = bytes there was
               ///< room for
  credit = 6,  ///< nothing but the credit in the header
  goodbye = 7,  ///< nothing follows
  notice = 8,   ///< of a rail: a record as on the bootstrap socket follows
};

/// Every message starts with it. `credits` return slots the receiver of this message may fill again.
struct MessageHeader {
  MessageKind kind;
  uint8_t reserved = 0;
  uint16_t count = 0;
  uint16_t data_credits = 0;
  uint16_t control_credits = 0;
  uint64_t tag = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint64_t peer_id = 0;
};
static_assert(sizeof(MessageHeader) == 40);

/// Rails of one connection, and devices of one context.
constexpr size_t max_rails = 8;
/// A key for each rail, by its place; 0 where there is none.
using RailKeys = std::array<uint32_t, max_rails>;

/// Memory of the peer. On the wire: address and bytes (8 each), then a key (4) for each rail of the
/// connection.
struct RemotePart {
  uint64_t address = 0;
  uint64_t bytes = 0;
  RailKeys keys{};

  static constexpr size_t wire_bytes(size_t rails) noexcept { return 16 + 4 * rails; }
};

/// To `bytes`, and from bytes that are whole parts.
void encode_parts(std::span<const RemotePart> parts, size_t rails, std::vector<std::byte>& bytes);
std::vector<RemotePart> decode_parts(std::span<const std::byte> bytes, size_t rails);

/// What a side posts. 8 KiB payload: below it a copy through a slot is cheaper than the three messages and
/// the registration of a rendezvous.
struct ProtocolSizes {
  static constexpr uint32_t eager_bytes = 8192;
  static constexpr uint32_t slot_bytes = eager_bytes + 64;
  static constexpr SlotCounts slots{64, 32};
  static constexpr uint32_t send_slots = 32;
  static constexpr uint32_t send_queue_depth = 256;
  /// Messages nobody asked for yet: beyond this, credit is held back until they are received.
  static constexpr uint64_t unexpected_bytes = uint64_t{64} << 20;
  static constexpr size_t unexpected_messages = 65536;
  static constexpr size_t waiting_notifications = 65536;
  static constexpr size_t max_remote_parts(size_t rails) {
    return (slot_bytes - sizeof(MessageHeader)) / RemotePart::wire_bytes(rails);
  }
  /// A transfer of at least twice as much goes over all rails, in pieces of at least this.
  static constexpr uint64_t stripe_bytes = uint64_t{256} << 10;
};

}  // namespace rdmatx
