#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messaging/credits.hpp"
#include "messaging/gid_scorer.hpp"

// The records two sides exchange over the bootstrap socket; pure logic. docs/wire-protocol.md describes them.

namespace rdmatx {

/// The kinds of record. The head and `refuse` keep their form in every version of the protocol, so that two
/// versions can tell each other so in words.
enum class RecordKind : uint16_t {
  hello = 1,      ///< connector to listener: who I am, what I can
  accept = 2,     ///< listener to connector: the same, and which pair of addresses we use
  ready = 3,      ///< connector to listener: my queue pair receives
  refuse = 4,     ///< either: no, because (text)
  goodbye = 5,    ///< either, later: closed on purpose
  failed = 6,     ///< either, later: my end broke, because (text)
  greeting = 7,   ///< connector to listener, where it has a secret: prove yours (authentication.hpp)
  challenge = 8,  ///< listener to connector: here is the proof, now prove yours
  denied = 9,     ///< either: no, because of the secret (text)
};

/// The 12 bytes in front of every record.
struct RecordHead {
  static constexpr uint32_t magic = 0x584d4452;  // "RDMX" on the wire
  static constexpr uint16_t version = 2;
  static constexpr size_t wire_bytes = 12;
  static constexpr size_t length_offset = 8;
  /// A record that claims more is refused unread. The largest honest one is a hello with max_candidates.
  static constexpr uint32_t max_body_bytes = 16384;

  RecordKind kind = RecordKind::hello;
  uint16_t version_seen = version;
  uint32_t body_bytes = 0;
};

/// Body of `hello` and `accept`.
struct HandshakeRecord {
  static constexpr size_t max_candidates = 256;

  /// Tells whether both sides run on one host (boot id of the kernel).
  std::array<uint8_t, 16> host_id{};
  uint32_t process_id = 0;
  std::string provider;
  std::string device;
  uint32_t queue_pair_number = 0;
  uint32_t packet_sequence_number = 0;
  SlotCounts slots;
  uint32_t slot_bytes = 0;
  /// Reads and atomics this side can answer at a time.
  uint8_t max_rd_atomic = 0;
  /// This side wants messages to carry checksums.
  bool verify = false;
  std::vector<GidCandidate> candidates;
  /// In `accept` only: places in the listener's and the connector's candidates.
  uint16_t chosen_listener = 0;
  uint16_t chosen_connector = 0;
  std::string reason;
};

/// Why bytes were not accepted; `text` is for people.
struct RecordProblem {
  std::string text;
  bool other_version = false;
  /// A record's seal is wrong: whoever said it does not know the secret, or it was altered on its way.
  bool unproved = false;
};

std::vector<std::byte> encode(RecordKind kind, const HandshakeRecord& record);
std::vector<std::byte> encode(RecordKind kind, const std::string& text = {});
/// A body with its head.
std::vector<std::byte> encode_record(RecordKind kind, std::span<const std::byte> body);

/// Reads a head. Nothing, with `problem` set, where it is not one of ours, of another version (but `refuse`,
/// which every version reads), or longer than allowed.
std::optional<RecordHead> decode_head(std::span<const std::byte, RecordHead::wire_bytes> bytes,
                                      RecordProblem& problem);
/// Reads the body of a hello or accept; nothing, with `problem` set, where it is malformed.
std::optional<HandshakeRecord> decode_handshake(std::span<const std::byte> body, RecordProblem& problem);
/// The text of a refuse, denied or failed record, with anything but printable characters replaced.
std::string decode_text(std::span<const std::byte> body);

}  // namespace rdmatx
