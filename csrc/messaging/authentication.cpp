#include "messaging/authentication.hpp"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "messaging/handshake.hpp"
#include "messaging/wire.hpp"

namespace rdmatx {
namespace {

std::span<const uint8_t> numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

std::span<const uint8_t> numbers(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Each thing that is derived has a label, so that none can stand for another. A label ends with its zero.
Digest derive(HmacSha256 code, std::string_view label, std::span<const uint8_t> content) {
  code.update(numbers(label));
  constexpr std::array<uint8_t, 1> end = {0};
  code.update(end);
  code.update(content);
  return code.finish();
}

Digest seal_of(HmacSha256 code, uint64_t number, std::span<const std::byte> record) {
  WireWriter out;
  out.number(number);
  code.update(numbers(out.bytes()));
  code.update(numbers(record));
  return code.finish();
}

// A copy of a record whose head says that this much more follows.
std::vector<std::byte> lengthened(std::span<const std::byte> record, size_t more) {
  std::vector<std::byte> longer(record.begin(), record.end());
  const auto length = static_cast<uint32_t>(record.size() - RecordHead::wire_bytes + more);
  for (size_t i = 0; i < sizeof length; ++i)
    longer[RecordHead::length_offset + i] = static_cast<std::byte>(length >> (8 * i));
  return longer;
}

void warn_of_short_secret() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log(LogLevel::warning, "the secret has fewer than " + std::to_string(Secret::enough_bytes) +
                             " bytes, and one that short can be guessed by whoever reaches a listener: take "
                             "a random one, such as `openssl rand -hex 32` prints");
}

}  // namespace

std::shared_ptr<const Secret> Secret::create(std::span<const uint8_t> bytes) {
  if (bytes.empty())
    throw UsageError(
        "the secret is empty: give at least one byte (better 32 random ones), or none at all, secret=None");
  if (bytes.size() < enough_bytes) warn_of_short_secret();
  return std::make_shared<const Secret>(bytes);
}

std::shared_ptr<const Secret> Secret::from_environment() {
  const char* text = std::getenv("RDMATX_SECRET");
  return text && *text ? create(numbers(std::string_view(text))) : nullptr;
}

Nonce random_nonce() {
  Nonce nonce;
  size_t have = 0;
  while (have < nonce.size()) {
    const ssize_t count = ::getrandom(nonce.data() + have, nonce.size() - have, 0);
    if (count >= 0)
      have += static_cast<size_t>(count);
    else if (errno != EINTR)
      throw Error("getrandom failed: " + describe_errno(errno) +
                  "; without randomness no secret can be proved");
  }
  return nonce;
}

std::vector<std::byte> encode_greeting(const Nonce& nonce) {
  return encode_record(RecordKind::greeting, std::as_bytes(std::span(nonce)));
}

std::vector<std::byte> encode_challenge(const Challenge& challenge) {
  WireWriter out;
  out.raw(std::as_bytes(std::span(challenge.nonce)));
  out.raw(std::as_bytes(std::span(challenge.proof)));
  return encode_record(RecordKind::challenge, out.bytes());
}

std::optional<Nonce> decode_greeting(std::span<const std::byte> body) {
  WireReader in(body);
  const Nonce nonce = in.array<32>();
  if (!in.ok() || in.left() != 0) return std::nullopt;
  return nonce;
}

std::optional<Challenge> decode_challenge(std::span<const std::byte> body) {
  WireReader in(body);
  Challenge challenge;
  challenge.nonce = in.array<32>();
  challenge.proof = in.array<32>();
  if (!in.ok() || in.left() != 0) return std::nullopt;
  return challenge;
}

SessionKeys::SessionKeys(const Secret& secret, const Nonce& connector, const Nonce& listener) noexcept {
  std::array<uint8_t, 64> nonces;
  std::copy(connector.begin(), connector.end(), nonces.begin());
  std::copy(listener.begin(), listener.end(), nonces.begin() + 32);
  proof_ = derive(secret.code(), "rdmatx 2 listener proof", nonces);
  connector_ = derive(secret.code(), "rdmatx 2 records of the connector", nonces);
  listener_ = derive(secret.code(), "rdmatx 2 records of the listener", nonces);
}

SessionKeys::~SessionKeys() {
  wipe(connector_);
  wipe(listener_);
}

RecordSeal::RecordSeal(const SessionKeys& keys, Side own) noexcept
    : own_(keys.key(own)), other_(keys.key(own == Side::connector ? Side::listener : Side::connector)) {}

std::vector<std::byte> RecordSeal::seal(std::span<const std::byte> record) {
  // The length of the sealed record is part of what is sealed.
  std::vector<std::byte> sealed = lengthened(record, wire_bytes);
  const Digest digest = seal_of(own_, sealed_++, sealed);
  const auto bytes = std::as_bytes(std::span(digest));
  sealed.insert(sealed.end(), bytes.begin(), bytes.end());
  return sealed;
}

std::optional<std::span<const std::byte>> RecordSeal::open(std::span<const std::byte> record) {
  if (record.size() < RecordHead::wire_bytes + wire_bytes) return std::nullopt;
  const auto content = record.first(record.size() - wire_bytes);
  if (!equal_in_constant_time(seal_of(other_, opened_, content), numbers(record.last(wire_bytes))))
    return std::nullopt;
  ++opened_;
  return content.subspan(RecordHead::wire_bytes);
}

}  // namespace rdmatx
