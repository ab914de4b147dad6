#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/export.hpp"
#include "base/sha256.hpp"

// The proof of a shared secret over the bootstrap socket, and the seal that every later record carries.
// docs/wire-protocol.md has the bytes, SECURITY.md what it is good for. Pure logic, but for the randomness.

namespace rdmatx {

/// A secret that peers share. Keeps a key made of it and not its bytes; that is wiped when the last share
/// goes. Nothing prints it. Immutable, so any thread may use it.
class RDMATX_API Secret {
 public:
  /// One shorter than this draws a warning, once a process: it can be guessed.
  static constexpr size_t enough_bytes = 16;

  /// Throws UsageError where there is no byte.
  static std::shared_ptr<const Secret> create(std::span<const uint8_t> bytes);
  /// The bytes of RDMATX_SECRET; null where it is not set or empty. Reads the environment, so no other thread
  /// may change it meanwhile.
  static std::shared_ptr<const Secret> from_environment();

  /// A code under this secret, to be fed.
  HmacSha256 code() const noexcept { return key_; }

  explicit Secret(std::span<const uint8_t> bytes) noexcept : key_(bytes) {}

 private:
  const HmacSha256 key_;
};

/// Null is none: then nobody has to prove anything.
using SharedSecret = std::shared_ptr<const Secret>;

/// Random, and used for one handshake only.
using Nonce = std::array<uint8_t, 32>;
/// Throws Error where the kernel has no randomness to give.
Nonce random_nonce();

/// What a listener answers a greeting with.
struct Challenge {
  Nonce nonce{};
  Digest proof{};
};

std::vector<std::byte> encode_greeting(const Nonce& nonce);
std::vector<std::byte> encode_challenge(const Challenge& challenge);
/// Of a record's body; nothing where its length is wrong.
std::optional<Nonce> decode_greeting(std::span<const std::byte> body);
std::optional<Challenge> decode_challenge(std::span<const std::byte> body);

enum class Side : uint8_t { connector, listener };

/// What both sides make of the secret and the two nonces. The sides' keys differ, so that nothing one side
/// said can be said back to it. Wiped when it goes.
class SessionKeys {
 public:
  SessionKeys(const Secret& secret, const Nonce& connector, const Nonce& listener) noexcept;
  ~SessionKeys();
  SessionKeys(const SessionKeys&) = delete;
  SessionKeys& operator=(const SessionKeys&) = delete;

  /// That of the listener, which proves first; the connector's is the seal of its first record.
  const Digest& proof() const noexcept { return proof_; }
  const Digest& key(Side side) const noexcept { return side == Side::connector ? connector_ : listener_; }

 private:
  Digest proof_;
  Digest connector_;
  Digest listener_;
};

/// Seals the records that one side sends and opens those of the other, in order: a record that was altered,
/// repeated, left out, or is of another connection, does not open. One thread at a time; wiped when it goes.
class RecordSeal {
 public:
  /// What a seal adds to a record's body.
  static constexpr size_t wire_bytes = 32;

  RecordSeal(const SessionKeys& keys, Side own) noexcept;

  /// A whole record, as encode() makes it, with its seal.
  std::vector<std::byte> seal(std::span<const std::byte> record);
  /// A whole record that came: the body without its seal, or nothing where the seal is wrong.
  std::optional<std::span<const std::byte>> open(std::span<const std::byte> record);

 private:
  HmacSha256 own_;
  HmacSha256 other_;
  uint64_t sealed_ = 0;
  uint64_t opened_ = 0;
};

}  // namespace rdmatx
