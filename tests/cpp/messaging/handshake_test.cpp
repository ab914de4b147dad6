#include "messaging/handshake.hpp"

#include <cstring>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/remote_key.hpp"

using namespace rdmatx;

namespace {

HandshakeRecord sample() {
  HandshakeRecord record;
  record.host_id[3] = 9;
  record.process_id = 4711;
  record.slots = {64, 32};
  record.slot_bytes = 8256;
  record.verify = true;
  for (int number = 0; number < 2; ++number) {
    RailRecord rail;
    rail.provider = "soft";
    rail.device = "soft" + std::to_string(number);
    rail.queue_pair_number = 0x123456;
    rail.packet_sequence_number = 0xabcdef;
    rail.max_rd_atomic = 16;
    rail.megabits_per_second = 100'000;
    rail.same_host_only = number == 1;
    for (int i = 0; i < 3; ++i) {
      GidCandidate candidate;
      candidate.gid = Gid::parse("::ffff:10.0.0." + std::to_string(i + 1));
      candidate.type = GidType::roce_v2;
      candidate.link_layer = LinkLayer::ethernet;
      candidate.index = static_cast<uint8_t>(i);
      candidate.prefix_bits = 24;
      rail.candidates.push_back(candidate);
    }
    record.rails.push_back(rail);
  }
  record.choices = {{1, 0, 2, 1, "because"}, {0, 1, 0, 0, ""}};
  return record;
}

std::span<const std::byte, RecordHead::wire_bytes> head_of(const std::vector<std::byte>& bytes) {
  return std::span(bytes).first<RecordHead::wire_bytes>();
}

std::span<const std::byte> body_of(const std::vector<std::byte>& bytes) {
  return std::span(bytes).subspan(RecordHead::wire_bytes);
}

}  // namespace

TEST(a_record_comes_back_as_it_was) {
  const auto bytes = encode(RecordKind::accept, sample());
  RecordProblem problem;
  const auto head = decode_head(head_of(bytes), problem);
  CHECK(head.has_value());
  CHECK_EQ(head->kind, RecordKind::accept);
  CHECK_EQ(head->body_bytes, bytes.size() - RecordHead::wire_bytes);
  const auto record = decode_handshake(body_of(bytes), problem);
  CHECK(record.has_value());
  CHECK_EQ(record->rails.size(), 2u);
  CHECK_EQ(record->rails[1].device, "soft1");
  CHECK_EQ(record->rails[1].queue_pair_number, 0x123456u);
  CHECK_EQ(record->rails[1].megabits_per_second, 100'000u);
  CHECK(record->rails[1].same_host_only && !record->rails[0].same_host_only);
  CHECK(record->rails[1].candidates == sample().rails[1].candidates);
  CHECK_EQ(record->slot_bytes, 8256u);
  CHECK(record->verify);
  CHECK_EQ(record->choices.size(), 2u);
  CHECK_EQ(record->choices[0].reason, "because");
  CHECK_EQ(record->choices[0].listener_candidate, 2u);
  CHECK_EQ(record->choices[1].connector_rail, 1u);
  CHECK(record->host_id == sample().host_id);
}

TEST(the_largest_record_fits_the_limit) {
  HandshakeRecord record = sample();
  RailRecord& rail = record.rails[0];
  rail.provider = rail.device = std::string(1000, 'x');
  rail.candidates.resize(HandshakeRecord::max_candidates + 50, rail.candidates[0]);
  record.rails.resize(max_rails, rail);
  record.choices.resize(max_rails, {0, 0, 0, 0, std::string(100000, 'y')});
  CHECK(encode(RecordKind::hello, record).size() <= RecordHead::wire_bytes + RecordHead::max_body_bytes);
}

TEST(every_truncation_is_refused) {
  const auto bytes = encode(RecordKind::hello, sample());
  const auto body = body_of(bytes);
  for (size_t length = 0; length < body.size(); ++length) {
    RecordProblem problem;
    CHECK(!decode_handshake(body.first(length), problem).has_value());
    CHECK(!problem.text.empty());
  }
  std::vector<std::byte> longer(body.begin(), body.end());
  longer.push_back(std::byte{0});
  RecordProblem problem;
  CHECK(!decode_handshake(longer, problem).has_value());
}

TEST(another_version_is_told_in_words) {
  auto bytes = encode(RecordKind::hello, sample());
  bytes[4] = std::byte{9};
  RecordProblem problem;
  CHECK(!decode_head(head_of(bytes), problem).has_value());
  CHECK(problem.other_version);
  CHECK(problem.text.find("version 9") != std::string::npos);
  CHECK(problem.text.find("install the same rdmatx") != std::string::npos);
  // A refusal is read whatever the version, so that the reason arrives.
  auto refusal = encode(RecordKind::refuse, "too old");
  refusal[4] = std::byte{9};
  CHECK(decode_head(head_of(refusal), problem).has_value());
  CHECK_EQ(decode_text(body_of(refusal)), "too old");
}

TEST(strangers_and_giants_are_refused) {
  RecordProblem problem;
  std::vector<std::byte> http(RecordHead::wire_bytes);
  std::memcpy(http.data(), "GET / HTTP/1", 12);
  CHECK(!decode_head(head_of(http), problem).has_value());
  auto giant = encode(RecordKind::hello, sample());
  for (int i = 8; i < 12; ++i) giant[i] = std::byte{0xff};
  CHECK(!decode_head(head_of(giant), problem).has_value());
  CHECK(problem.text.find("4294967295") != std::string::npos);
  auto unknown = encode(RecordKind::hello, sample());
  unknown[6] = std::byte{77};
  CHECK(!decode_head(head_of(unknown), problem).has_value());
}

TEST(senseless_fields_are_refused) {
  RecordProblem problem;
  const auto refused = [&](auto change) {
    HandshakeRecord record = sample();
    change(record);
    const auto bytes = encode(RecordKind::hello, record);
    return !decode_handshake(body_of(bytes), problem).has_value();
  };
  CHECK(!refused([](HandshakeRecord&) {}));
  CHECK(refused([](HandshakeRecord& r) { r.rails[1].queue_pair_number = 1 << 24; }));
  CHECK(refused([](HandshakeRecord& r) { r.rails.clear(); }));
  CHECK(refused([](HandshakeRecord& r) { r.rails.resize(max_rails + 1); }));
  CHECK(refused([](HandshakeRecord& r) { r.choices.resize(max_rails + 1); }));
  CHECK(refused([](HandshakeRecord& r) { r.slot_bytes = 10; }));
  CHECK(refused([](HandshakeRecord& r) { r.slot_bytes = 1u << 30; }));
  CHECK(refused([](HandshakeRecord& r) { r.slots.data = 0; }));
  CHECK(refused([](HandshakeRecord& r) { r.slots.control = 1u << 20; }));
  CHECK(refused([](HandshakeRecord& r) { r.rails[1].candidates[1].mtu_bytes = 1500; }));
  CHECK(refused([](HandshakeRecord& r) { r.rails[1].candidates[1].type = static_cast<GidType>(9); }));
  CHECK(refused([](HandshakeRecord& r) { r.rails[1].candidates[1].port = 0; }));
  CHECK(refused([](HandshakeRecord& r) { r.rails[1].candidates[1].prefix_bits = 200; }));
}

TEST(rail_notices_come_back_as_they_were) {
  const auto bytes = encode(RecordKind::rail_failed, RailNotice{3, uint64_t{1} << 40, 0x123456, 9});
  RecordProblem problem;
  CHECK_EQ(decode_head(head_of(bytes), problem)->kind, RecordKind::rail_failed);
  const auto notice = decode_rail_notice(body_of(bytes));
  CHECK(notice.has_value());
  CHECK_EQ(notice->lane, 3u);
  CHECK_EQ(notice->delivered, uint64_t{1} << 40);
  CHECK_EQ(notice->queue_pair_number, 0x123456u);
  CHECK_EQ(notice->packet_sequence_number, 9u);
  for (size_t length = 0; length < body_of(bytes).size(); ++length)
    CHECK(!decode_rail_notice(body_of(bytes).first(length)).has_value());
  CHECK(
      !decode_rail_notice(body_of(encode(RecordKind::rail_offer, RailNotice{0, 0, 1 << 24, 0}))).has_value());
}

TEST(text_from_outside_is_made_printable) {
  const auto bytes = encode(RecordKind::refuse, "a\x1b[31m\nb");
  CHECK_EQ(decode_text(body_of(bytes)), "a?[31m?b");
  CHECK_EQ(decode_text({}), "");
}

TEST(a_remote_key_comes_back_as_it_was) {
  const RemoteKey key{0x7f0000001000, 12345, RemoteAccess::read | RemoteAccess::write, 2, {0xdeadbeef, 7}};
  const auto bytes = key.to_bytes();
  CHECK(RemoteKey::from_bytes(bytes) == key);
  CHECK_EQ(bytes.size(), RemoteKey::wire_bytes(2));
}

TEST(a_damaged_remote_key_is_refused) {
  const auto bytes = RemoteKey{1, 2, 1, 1, {3}}.to_bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    CHECK_THROWS(UsageError, "remote key", RemoteKey::from_bytes(damaged));
    CHECK_THROWS(UsageError, "remote key", RemoteKey::from_bytes(std::span(bytes).first(i)));
  }
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  CHECK_THROWS(UsageError, "remote key", RemoteKey::from_bytes(longer));
}

TEST(a_remote_key_knows_its_bounds) {
  const RemoteKey key{0x1000, 100, RemoteAccess::write, 1, {7}};
  key.check(0, 100, RemoteAccess::write, "write");
  key.check(100, 0, RemoteAccess::write, "write");
  CHECK_THROWS(UsageError, "passes the end", key.check(1, 100, RemoteAccess::write, "write"));
  CHECK_THROWS(UsageError, "passes the end", key.check(101, 0, RemoteAccess::write, "write"));
  CHECK_THROWS(UsageError, "passes the end", key.check(UINT64_MAX, 2, RemoteAccess::write, "write"));
  CHECK_THROWS(UsageError, "passes the end", key.check(2, UINT64_MAX, RemoteAccess::write, "write"));
  CHECK_THROWS(UsageError, "access \"r\"", key.check(0, 1, RemoteAccess::read, "read"));
}

RDMATX_TEST_MAIN()
