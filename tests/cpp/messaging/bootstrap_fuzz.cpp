// What a stranger may send to a bootstrap socket: any bytes, in any pieces, before and after the proof of the
// secret. The first byte says whether records are sealed, the second how long the pieces are.

#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "fuzz.hpp"
#include "messaging/bootstrap.hpp"

using namespace rdmatx;

namespace {

SessionKeys keys() {
  const std::array<uint8_t, 4> bytes = {1, 2, 3, 4};
  return SessionKeys(Secret(bytes), Nonce{1}, Nonce{2});
}

// All that the honest peer says. Under a seal nothing else may be taken for a record of its.
std::vector<std::vector<std::byte>> honest_records() {
  return {encode(RecordKind::hello, HandshakeRecord{}), encode(RecordKind::ready),
          encode(RecordKind::goodbye, "done")};
}

bool is_honest(const BootstrapSocket::Record& record, size_t number) {
  const auto honest = honest_records();
  if (number >= honest.size()) return false;
  constexpr RecordKind kinds[] = {RecordKind::hello, RecordKind::ready, RecordKind::goodbye};
  const auto body = std::span(honest[number]).subspan(RecordHead::wire_bytes);
  return record.head.kind == kinds[number] &&
         std::equal(body.begin(), body.end(), record.body.begin(), record.body.end());
}

void read_all(BootstrapSocket& socket, bool sealed, size_t& count, bool& over) {
  BootstrapSocket::Record record;
  RecordProblem problem;
  while (!over) {
    switch (socket.try_receive(record, problem)) {
      case BootstrapSocket::Arrival::nothing_yet:
        return;
      case BootstrapSocket::Arrival::record:
        if (record.body.size() > RecordHead::max_body_bytes) std::abort();
        if (sealed && !is_honest(record, count)) std::abort();
        ++count;
        decode_greeting(record.body);
        decode_challenge(record.body);
        decode_handshake(record.body, problem);
        decode_text(record.body);
        break;
      case BootstrapSocket::Arrival::malformed:
        if (problem.text.empty() || (problem.unproved && !sealed)) std::abort();
        [[fallthrough]];
      case BootstrapSocket::Arrival::closed:
        over = true;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool sealed = data[0] & 1;
  const size_t piece = 1 + data[1];
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) return 0;
  const UniqueFd stranger(fds[0]);
  BootstrapSocket socket{UniqueFd(fds[1])};
  if (sealed) socket.protect(RecordSeal(keys(), Side::listener));
  size_t count = 0;
  bool over = false;
  for (size_t at = 2; at < size && !over; at += piece) {
    const size_t length = std::min(piece, size - at);
    if (::send(stranger.get(), data + at, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) break;
    read_all(socket, sealed, count, over);
  }
  return 0;
}

namespace rdmatx::testing {

std::vector<std::vector<uint8_t>> fuzz_seeds() {
  std::vector<std::vector<uint8_t>> seeds;
  for (uint8_t sealed : {0, 1}) {
    RecordSeal seal(keys(), Side::connector);
    std::vector<uint8_t> seed = {sealed, 100};
    for (const auto& record : honest_records()) {
      const auto bytes = sealed ? seal.seal(record) : record;
      const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
      seed.insert(seed.end(), first, first + bytes.size());
    }
    seeds.push_back(seed);
  }
  std::vector<uint8_t> opening = {0, 255};
  for (const auto& record : {encode_greeting(Nonce{3}), encode_challenge(Challenge{})}) {
    const auto* first = reinterpret_cast<const uint8_t*>(record.data());
    opening.insert(opening.end(), first, first + record.size());
  }
  seeds.push_back(opening);
  return seeds;
}

}  // namespace rdmatx::testing
