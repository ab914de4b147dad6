#include "messaging/handshake.hpp"

#include <algorithm>

#include "messaging/protocol.hpp"
#include "messaging/wire.hpp"

namespace rdmatx {
namespace {

void write_candidate(WireWriter& out, const GidCandidate& candidate) {
  out.raw(std::as_bytes(std::span(candidate.gid.raw)));
  out.number(static_cast<uint8_t>(candidate.type));
  out.number(static_cast<uint8_t>(candidate.link_layer));
  out.number(candidate.port);
  out.number(candidate.index);
  out.number(candidate.lid);
  out.number(candidate.mtu_bytes);
  out.number(candidate.prefix_bits);
}

bool read_candidate(WireReader& in, GidCandidate& candidate) {
  candidate.gid.raw = in.array<16>();
  const auto type = in.number<uint8_t>();
  const auto link_layer = in.number<uint8_t>();
  candidate.type = static_cast<GidType>(type);
  candidate.link_layer = static_cast<LinkLayer>(link_layer);
  candidate.port = in.number<uint8_t>();
  candidate.index = in.number<uint8_t>();
  candidate.lid = in.number<uint16_t>();
  candidate.mtu_bytes = in.number<uint32_t>();
  candidate.prefix_bits = in.number<uint8_t>();
  const uint32_t mtu = candidate.mtu_bytes;
  const bool mtu_known = mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096;
  return in.ok() && type <= static_cast<uint8_t>(GidType::roce_v2) && mtu_known &&
         candidate.prefix_bits <= 128 && link_layer <= static_cast<uint8_t>(LinkLayer::ethernet) &&
         candidate.port >= 1;
}

// Returns how many addresses it wrote.
size_t write_rail(WireWriter& out, const RailRecord& rail, size_t room) {
  out.text(rail.provider.substr(0, 64));
  out.text(rail.device.substr(0, 64));
  out.number(rail.queue_pair_number);
  out.number(rail.packet_sequence_number);
  out.number(rail.max_rd_atomic);
  out.number(rail.megabits_per_second);
  out.number(static_cast<uint8_t>(rail.same_host_only));
  const size_t count = std::min(rail.candidates.size(), room);
  out.number(static_cast<uint16_t>(count));
  for (size_t i = 0; i < count; ++i) write_candidate(out, rail.candidates[i]);
  return count;
}

// What is wrong with it, or null.
const char* read_rail(WireReader& in, RailRecord& rail, size_t& room) {
  rail.provider = in.text();
  rail.device = in.text();
  rail.queue_pair_number = in.number<uint32_t>();
  rail.packet_sequence_number = in.number<uint32_t>();
  rail.max_rd_atomic = in.number<uint8_t>();
  rail.megabits_per_second = in.number<uint32_t>();
  const auto same_host_only = in.number<uint8_t>();
  rail.same_host_only = same_host_only == 1;
  const size_t count = in.number<uint16_t>();
  if (!in.ok()) return "it is too short";
  if (count > room) return "it has too many addresses";
  room -= count;
  rail.candidates.resize(count);
  for (GidCandidate& candidate : rail.candidates)
    if (!read_candidate(in, candidate)) return "one of its addresses makes no sense";
  if (rail.queue_pair_number > 0xffffff || rail.packet_sequence_number > 0xffffff)
    return "a queue pair has numbers of 24 bits";
  return same_host_only > 1 ? "a rail serves one host alone, or does not" : nullptr;
}

std::optional<HandshakeRecord> malformed(RecordProblem& problem, const char* what) {
  problem.text = std::string("the peer's handshake record is malformed: ") + what;
  return std::nullopt;
}

}  // namespace

std::vector<std::byte> encode_record(RecordKind kind, std::span<const std::byte> body) {
  WireWriter out;
  out.number(RecordHead::magic);
  out.number(RecordHead::version);
  out.number(static_cast<uint16_t>(kind));
  out.number(static_cast<uint32_t>(body.size()));
  out.raw(body);
  return out.take();
}

std::vector<std::byte> encode(RecordKind kind, const HandshakeRecord& record) {
  WireWriter out;
  out.raw(std::as_bytes(std::span(record.host_id)));
  out.number(record.process_id);
  out.number(record.slots.data);
  out.number(record.slots.control);
  out.number(record.slot_bytes);
  out.number(static_cast<uint8_t>(record.verify));
  out.number(static_cast<uint8_t>(record.rails.size()));
  size_t room = HandshakeRecord::max_candidates;
  for (const RailRecord& rail : record.rails) room -= write_rail(out, rail, room);
  out.number(static_cast<uint8_t>(record.choices.size()));
  for (const RailChoice& choice : record.choices) {
    out.number(choice.listener_rail);
    out.number(choice.connector_rail);
    out.number(choice.listener_candidate);
    out.number(choice.connector_candidate);
    out.text(choice.reason.substr(0, 256));
  }
  return encode_record(kind, out.bytes());
}

std::vector<std::byte> encode(RecordKind kind, const RailNotice& notice) {
  WireWriter out;
  out.number(notice.lane);
  out.number(notice.delivered);
  out.number(notice.queue_pair_number);
  out.number(notice.packet_sequence_number);
  return encode_record(kind, out.bytes());
}

std::optional<RailNotice> decode_rail_notice(std::span<const std::byte> body) {
  WireReader in(body);
  RailNotice notice;
  notice.lane = in.number<uint8_t>();
  notice.delivered = in.number<uint64_t>();
  notice.queue_pair_number = in.number<uint32_t>();
  notice.packet_sequence_number = in.number<uint32_t>();
  if (!in.ok() || in.left() != 0 || notice.queue_pair_number > 0xffffff ||
      notice.packet_sequence_number > 0xffffff)
    return std::nullopt;
  return notice;
}

std::vector<std::byte> encode(RecordKind kind, const std::string& text) {
  WireWriter out;
  out.text(text.substr(0, 4096));
  return encode_record(kind, out.bytes());
}

std::optional<RecordHead> decode_head(std::span<const std::byte, RecordHead::wire_bytes> bytes,
                                      RecordProblem& problem) {
  WireReader in(bytes);
  RecordHead head;
  if (in.number<uint32_t>() != RecordHead::magic) {
    problem.text = "what came is no rdmatx handshake: another program speaks on this socket";
    return std::nullopt;
  }
  head.version_seen = in.number<uint16_t>();
  const auto kind = in.number<uint16_t>();
  head.kind = static_cast<RecordKind>(kind);
  head.body_bytes = in.number<uint32_t>();
  if (head.version_seen != RecordHead::version && head.kind != RecordKind::refuse) {
    problem.text = "the other side speaks version " + std::to_string(head.version_seen) +
                   " of rdmatx's protocol and this side version " + std::to_string(RecordHead::version) +
                   ": install the same rdmatx on both";
    problem.other_version = true;
    return std::nullopt;
  }
  if (kind < static_cast<uint16_t>(RecordKind::hello) ||
      kind > static_cast<uint16_t>(RecordKind::rail_ready)) {
    problem.text = "a handshake record of unknown kind " + std::to_string(kind) + " came";
    return std::nullopt;
  }
  if (head.body_bytes > RecordHead::max_body_bytes) {
    problem.text = "a handshake record claims " + std::to_string(head.body_bytes) + " bytes, and at most " +
                   std::to_string(RecordHead::max_body_bytes) + " are read";
    return std::nullopt;
  }
  return head;
}

std::optional<HandshakeRecord> decode_handshake(std::span<const std::byte> body, RecordProblem& problem) {
  WireReader in(body);
  HandshakeRecord record;
  record.host_id = in.array<16>();
  record.process_id = in.number<uint32_t>();
  record.slots.data = in.number<uint32_t>();
  record.slots.control = in.number<uint32_t>();
  record.slot_bytes = in.number<uint32_t>();
  const auto verify = in.number<uint8_t>();
  record.verify = verify == 1;
  const size_t rails = in.number<uint8_t>();
  if (!in.ok()) return malformed(problem, "it is too short");
  if (verify > 1) return malformed(problem, "it neither wants checksums nor does without");
  if (rails < 1 || rails > max_rails) return malformed(problem, "it has no rails, or too many");
  record.rails.resize(rails);
  size_t room = HandshakeRecord::max_candidates;
  for (RailRecord& rail : record.rails)
    if (const char* what = read_rail(in, rail, room)) return malformed(problem, what);
  record.choices.resize(std::min<size_t>(in.number<uint8_t>(), max_rails + 1));
  if (record.choices.size() > max_rails) return malformed(problem, "it chose too many rails");
  for (RailChoice& choice : record.choices) {
    choice.listener_rail = in.number<uint8_t>();
    choice.connector_rail = in.number<uint8_t>();
    choice.listener_candidate = in.number<uint16_t>();
    choice.connector_candidate = in.number<uint16_t>();
    choice.reason = in.text();
  }
  if (!in.ok() || in.left() != 0) return malformed(problem, "its length and its content differ");
  const auto sensible = [](uint32_t slots) { return slots >= 2 && slots <= 16384; };
  if (!sensible(record.slots.data) || !sensible(record.slots.control) || record.slot_bytes < 256 ||
      record.slot_bytes > (1u << 20))
    return malformed(problem, "its receive slots make no sense");
  return record;
}

std::string decode_text(std::span<const std::byte> body) {
  std::string text = WireReader(body).text();
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

}  // namespace rdmatx
