// Bytes from outside: a record's head and body, and a remote key.

#include <cstdlib>

#include "base/error.hpp"
#include "fuzz.hpp"
#include "messaging/handshake.hpp"
#include "messaging/remote_key.hpp"

using namespace rdmatx;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  RecordProblem problem;
  if (bytes.size() >= RecordHead::wire_bytes) {
    const auto head = decode_head(bytes.first<RecordHead::wire_bytes>(), problem);
    if (head && head->body_bytes > RecordHead::max_body_bytes) std::abort();
    if (!head && problem.text.empty()) std::abort();
    const auto body = bytes.subspan(RecordHead::wire_bytes);
    if (const auto record = decode_handshake(body, problem)) {
      // What was accepted survives being said again.
      const auto again = encode(RecordKind::hello, *record);
      if (!decode_handshake(std::span(again).subspan(RecordHead::wire_bytes), problem)) std::abort();
    }
    decode_text(body);
  }
  try {
    const RemoteKey key = RemoteKey::from_bytes(bytes);
    if (RemoteKey::from_bytes(key.to_bytes()) != key) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}

namespace rdmatx::testing {

std::vector<std::vector<uint8_t>> fuzz_seeds() {
  std::vector<std::vector<uint8_t>> seeds;
  const auto add = [&](std::span<const std::byte> bytes) {
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    seeds.emplace_back(first, first + bytes.size());
  };
  HandshakeRecord record;
  record.slots = {64, 32};
  record.slot_bytes = 8256;
  RailRecord rail;
  rail.provider = "soft";
  rail.device = "soft0";
  rail.candidates.resize(2);
  record.rails = {rail, rail};
  add(encode(RecordKind::hello, record));
  record.choices = {{0, 0, 1, 1, "on one subnet"}};
  add(encode(RecordKind::accept, record));
  add(encode(RecordKind::rail_offer, RailNotice{1, 2, 3, 4}));
  add(encode(RecordKind::refuse, "another version"));
  add(RemoteKey{4096, 65536, RemoteAccess::read, 1, {17}}.to_bytes());
  return seeds;
}

}  // namespace rdmatx::testing
