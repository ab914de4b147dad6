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
  // RailNotices, either way, over a rail of a living connection:
  rail_failed = 10,  ///< given up here; every one is answered by one of the other side
  rail_offer = 11,   ///< connector to listener: a new queue pair for one that failed
  rail_answer = 12,  ///< listener to connector: the other end of it, which receives
  rail_ready = 13,   ///< connector to listener: mine receives too
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

/// One device of a side, and a queue pair of it.
struct RailRecord {
  std::string provider;
  std::string device;
  uint32_t queue_pair_number = 0;
  uint32_t packet_sequence_number = 0;
  /// Reads and atomics this side can answer at a time.
  uint8_t max_rd_atomic = 0;
  /// How fast its port is, to weigh it against others.
  uint32_t megabits_per_second = 0;
  /// It reaches peers of the same host, and is used for these alone.
  bool same_host_only = false;
  std::vector<GidCandidate> candidates;
};

/// One rail of the connection: places in the rails of both sides, and in their addresses.
struct RailChoice {
  uint8_t listener_rail = 0;
  uint8_t connector_rail = 0;
  uint16_t listener_candidate = 0;
  uint16_t connector_candidate = 0;
  std::string reason;
};

/// Body of `hello` and `accept`.
struct HandshakeRecord {
  static constexpr size_t max_candidates = 256;  ///< of all rails together

  /// Tells whether both sides run on one host (boot id of the kernel).
  std::array<uint8_t, 16> host_id{};
  uint32_t process_id = 0;
  SlotCounts slots;
  uint32_t slot_bytes = 0;
  /// This side wants messages to carry checksums.
  bool verify = false;
  std::vector<RailRecord> rails;
  /// In `accept` only.
  std::vector<RailChoice> choices;
};

/// Body of the records by which a rail of a living connection is given up and brought back. What a kind does
/// not say is 0.
struct RailNotice {
  uint8_t lane = 0;
  /// Of `rail_failed`: messages and notifications that came over it.
  uint64_t delivered = 0;
  /// Of `rail_offer` and `rail_answer`; queue pair 0 in an answer: not now.
  uint32_t queue_pair_number = 0;
  uint32_t packet_sequence_number = 0;
};

/// Why bytes were not accepted; `text` is for people.
struct RecordProblem {
  std::string text;
  bool other_version = false;
  /// The socket failed since the other host could not be reached for seconds.
  bool unreachable = false;
  /// A record's seal is wrong: whoever said it does not know the secret, or it was altered on its way.
  bool unproved = false;
};

std::vector<std::byte> encode(RecordKind kind, const HandshakeRecord& record);
std::vector<std::byte> encode(RecordKind kind, const std::string& text = {});
std::vector<std::byte> encode(RecordKind kind, const RailNotice& notice);
/// A body with its head.
std::vector<std::byte> encode_record(RecordKind kind, std::span<const std::byte> body);

/// Reads a head. Nothing, with `problem` set, where it is not one of ours, of another version (but `refuse`,
/// which every version reads), or longer than allowed.
std::optional<RecordHead> decode_head(std::span<const std::byte, RecordHead::wire_bytes> bytes,
                                      RecordProblem& problem);
/// Reads the body of a hello or accept; nothing, with `problem` set, where it is malformed.
std::optional<HandshakeRecord> decode_handshake(std::span<const std::byte> body, RecordProblem& problem);
std::optional<RailNotice> decode_rail_notice(std::span<const std::byte> body);
/// The text of a refuse, denied or failed record, with anything but printable characters replaced.
std::string decode_text(std::span<const std::byte> body);

}  // namespace rdmatx
