#include "base/sha256.hpp"

#include <algorithm>
#include <bit>

namespace rdmatx {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> round_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load(const uint8_t* bytes) noexcept {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

template <typename T>
void store(uint8_t* bytes, T value) noexcept {
  for (size_t i = 0; i < sizeof value; ++i)
    bytes[i] = static_cast<uint8_t>(value >> (8 * (sizeof value - 1 - i)));
}

template <typename T, size_t N>
void wipe_array(std::array<T, N>& values) noexcept {
  wipe({reinterpret_cast<uint8_t*>(values.data()), sizeof values});
}

}  // namespace

void wipe(std::span<uint8_t> memory) noexcept {
  volatile uint8_t* const first = memory.data();
  for (size_t i = 0; i < memory.size(); ++i) first[i] = 0;
}

bool equal_in_constant_time(std::span<const uint8_t> one, std::span<const uint8_t> other) noexcept {
  if (one.size() != other.size()) return false;
  // Volatile, so that the compiler does not stop at the first difference.
  volatile uint8_t differing = 0;
  for (size_t i = 0; i < one.size(); ++i) differing = differing | static_cast<uint8_t>(one[i] ^ other[i]);
  return differing == 0;
}

Sha256::~Sha256() {
  wipe_array(state_);
  wipe_array(block_);
}

void Sha256::update(std::span<const uint8_t> bytes) noexcept {
  size_t filled = bytes_ % block_.size();
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), block_.size() - filled);
    std::copy_n(bytes.data(), count, block_.data() + filled);
    bytes = bytes.subspan(count);
    filled += count;
    if (filled < block_.size()) return;
    compress(block_.data());
    filled = 0;
  }
}

Digest Sha256::finish() noexcept {
  const uint64_t bits = bytes_ * 8;
  std::array<uint8_t, 72> padding{0x80};
  // A one, then zeros up to eight bytes before the end of a block, then the length in bits.
  const size_t zeros = (block_.size() + 55 - bytes_ % block_.size()) % block_.size();
  store(padding.data() + 1 + zeros, bits);
  update(std::span(padding).first(1 + zeros + sizeof bits));
  Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) store(digest.data() + 4 * i, state_[i]);
  return digest;
}

void Sha256::compress(const uint8_t* block) noexcept {
  std::array<uint32_t, 64> schedule;
  for (size_t i = 0; i < 16; ++i) schedule[i] = load(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t early = schedule[i - 15];
    const uint32_t late = schedule[i - 2];
    schedule[i] = schedule[i - 16] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3) +
                  schedule[i - 7] + (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + round_constants[i] + schedule[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
  wipe_array(schedule);
}

Digest sha256(std::span<const uint8_t> bytes) noexcept {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

HmacSha256::HmacSha256(std::span<const uint8_t> key) noexcept {
  std::array<uint8_t, 64> block{};
  if (key.size() > block.size()) {
    Digest shorter = sha256(key);
    std::copy(shorter.begin(), shorter.end(), block.begin());
    wipe(shorter);
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  for (uint8_t& byte : block) byte ^= 0x36;
  inner_.update(block);
  for (uint8_t& byte : block) byte ^= 0x36 ^ 0x5c;
  outer_.update(block);
  wipe(block);
}

Digest HmacSha256::finish() noexcept {
  Digest inner = inner_.finish();
  outer_.update(inner);
  wipe(inner);
  return outer_.finish();
}

}  // namespace rdmatx
