#include "base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define RDMATX_CRC32C_INSTRUCTION 1
#define RDMATX_CRC32C_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define RDMATX_CRC32C_INSTRUCTION 1
#define RDMATX_CRC32C_TARGET __attribute__((target("+crc")))
#endif

namespace rdmatx {
namespace {

// Polynomials over two elements, lowest power in the highest bit: as the bits of a byte go over the wire.
constexpr uint32_t polynomial = 0x82f63b78;
constexpr uint32_t one = 0x80000000;

constexpr uint32_t times_x(uint32_t value) {
  return value & 1 ? value >> 1 ^ polynomial : value >> 1;
}

constexpr uint32_t multiply(uint32_t left, uint32_t right) {
  uint32_t product = 0;
  for (uint32_t bit = one; bit != 0; bit >>= 1) {
    if (left & bit) product ^= right;
    right = times_x(right);
  }
  return product;
}

// Eight bytes a step: tables[k][b] is byte b followed by k zero bytes.
using ByteTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr ByteTables make_byte_tables() {
  ByteTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (uint32_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr ByteTables byte_tables = make_byte_tables();

uint64_t load(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

constexpr bool little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

uint32_t by_tables(uint32_t seed, const void* data, size_t bytes) noexcept {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t value = ~seed;
  for (; little_endian && bytes >= 8; bytes -= 8, at += 8) {
    const uint64_t word = load(at) ^ value;
    value = 0;
    for (size_t k = 0; k < 8; ++k) value ^= byte_tables[7 - k][word >> 8 * k & 0xff];
  }
  for (; bytes > 0; --bytes) value = value >> 8 ^ byte_tables[0][(value ^ *at++) & 0xff];
  return ~value;
}

#ifdef RDMATX_CRC32C_INSTRUCTION

// The instruction gives a result three cycles after its operands, and one may start every cycle: three
// stretches of memory are summed up side by side, then put together by what a stretch of zeros does to a sum.
class ZeroStretch {
 public:
  static constexpr ZeroStretch of(size_t bytes) {
    uint32_t power = one;  // x to the power of 8 * bytes
    uint32_t square = one >> 8;
    for (size_t left = bytes; left != 0; left >>= 1) {
      if (left & 1) power = multiply(power, square);
      square = multiply(square, square);
    }
    ZeroStretch made;
    for (size_t k = 0; k < 4; ++k)
      for (uint32_t bit = 1; bit < 256; bit <<= 1) {
        const uint32_t image = multiply(bit << 8 * k, power);
        for (uint32_t below = 0; below < bit; ++below)
          made.tables_[k][bit + below] = made.tables_[k][below] ^ image;
      }
    return made;
  }
  uint32_t after(uint32_t value) const noexcept {
    return tables_[0][value & 0xff] ^ tables_[1][value >> 8 & 0xff] ^ tables_[2][value >> 16 & 0xff] ^
           tables_[3][value >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

constexpr size_t long_bytes = 4096;
constexpr size_t short_bytes = 256;
constexpr ZeroStretch long_stretch = ZeroStretch::of(long_bytes);
constexpr ZeroStretch short_stretch = ZeroStretch::of(short_bytes);

#if defined(__x86_64__)
bool has_instruction() noexcept {
  return __builtin_cpu_supports("sse4.2");
}
RDMATX_CRC32C_TARGET inline uint32_t add_word(uint32_t value, uint64_t word) noexcept {
  return static_cast<uint32_t>(_mm_crc32_u64(value, word));
}
RDMATX_CRC32C_TARGET inline uint32_t add_byte(uint32_t value, uint8_t byte) noexcept {
  return _mm_crc32_u8(value, byte);
}
#else
bool has_instruction() noexcept {
  constexpr unsigned long hardware_crc32 = 1 << 7;  // HWCAP_CRC32 of asm/hwcap.h
  return little_endian && (getauxval(AT_HWCAP) & hardware_crc32);
}
RDMATX_CRC32C_TARGET inline uint32_t add_word(uint32_t value, uint64_t word) noexcept {
  return __crc32cd(value, word);
}
RDMATX_CRC32C_TARGET inline uint32_t add_byte(uint32_t value, uint8_t byte) noexcept {
  return __crc32cb(value, byte);
}
#endif

template <size_t stretch>
RDMATX_CRC32C_TARGET uint32_t add_stretches(uint32_t value, const uint8_t*& at, size_t& bytes,
                                            const ZeroStretch& zeros) noexcept {
  for (; bytes >= 3 * stretch; bytes -= 3 * stretch, at += 3 * stretch) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < stretch; i += 8) {
      value = add_word(value, load(at + i));
      second = add_word(second, load(at + stretch + i));
      third = add_word(third, load(at + 2 * stretch + i));
    }
    value = zeros.after(zeros.after(value) ^ second) ^ third;
  }
  return value;
}

RDMATX_CRC32C_TARGET uint32_t by_instruction(uint32_t seed, const void* data, size_t bytes) noexcept {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t value = ~seed;
  value = add_stretches<long_bytes>(value, at, bytes, long_stretch);
  value = add_stretches<short_bytes>(value, at, bytes, short_stretch);
  for (; bytes >= 8; bytes -= 8, at += 8) value = add_word(value, load(at));
  for (; bytes > 0; --bytes) value = add_byte(value, *at++);
  return ~value;
}

constexpr std::array variants{Crc32cVariant{"instruction", &by_instruction},
                              Crc32cVariant{"tables", &by_tables}};
#else
bool has_instruction() noexcept {
  return true;  // the first variant, whatever it is, serves
}
constexpr std::array variants{Crc32cVariant{"tables", &by_tables}};
#endif

}  // namespace

std::span<const Crc32cVariant> crc32c_variants() noexcept {
  static const size_t first = has_instruction() ? 0 : 1;
  return std::span(variants).subspan(first);
}

uint32_t crc32c(uint32_t seed, const void* data, size_t bytes) noexcept {
  static const auto fastest = crc32c_variants().front().function;
  return fastest(seed, data, bytes);
}

}  // namespace rdmatx
