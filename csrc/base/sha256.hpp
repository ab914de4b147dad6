#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), for the proof of a shared secret: a few hundred bytes a
// connection, so that no cryptographic library is needed. Nothing here is fast, and nothing branches or
// indexes by what is secret.

namespace rdmatx {

using Digest = std::array<uint8_t, 32>;

/// Overwrites memory that held a secret, in a way that the compiler may not leave out.
void wipe(std::span<uint8_t> memory) noexcept;
/// Takes as long for any content; of two lengths, false.
bool equal_in_constant_time(std::span<const uint8_t> one, std::span<const uint8_t> other) noexcept;

/// A hash in the making. A value: a copy goes on from where the original is. Wiped when it goes.
class Sha256 {
 public:
  Sha256() = default;
  Sha256(const Sha256&) = default;
  Sha256& operator=(const Sha256&) = default;
  ~Sha256();

  void update(std::span<const uint8_t> bytes) noexcept;
  /// Of all that came in; call it once.
  Digest finish() noexcept;

 private:
  void compress(const uint8_t* block) noexcept;

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  uint64_t bytes_ = 0;
};

Digest sha256(std::span<const uint8_t> bytes) noexcept;

/// A message authentication code in the making. A value: a fresh one, kept and copied, is a key that does not
/// hold the bytes it was made from. Wiped when it goes.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const uint8_t> key) noexcept;

  void update(std::span<const uint8_t> bytes) noexcept { inner_.update(bytes); }
  /// Call it once.
  Digest finish() noexcept;

 private:
  Sha256 inner_;
  Sha256 outer_;
};

}  // namespace rdmatx
