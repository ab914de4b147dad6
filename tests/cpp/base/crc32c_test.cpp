#include "base/crc32c.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"

using namespace rdmatx;

namespace {

// Bit by bit, as the definition reads.
uint32_t by_definition(uint32_t seed, const uint8_t* data, size_t bytes) {
  uint32_t value = ~seed;
  for (size_t i = 0; i < bytes; ++i) {
    value ^= data[i];
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
  }
  return ~value;
}

std::vector<uint8_t> random_bytes(std::mt19937_64& random, size_t bytes) {
  std::vector<uint8_t> made(bytes);
  for (uint8_t& byte : made) byte = static_cast<uint8_t>(random());
  return made;
}

}  // namespace

// RFC 3720, appendix B.4, and the check value of the catalogues of checksums.
TEST(the_published_values) {
  std::vector<uint8_t> zeros(32), ones(32, 0xff), up(32), down(32);
  for (size_t i = 0; i < 32; ++i) {
    up[i] = static_cast<uint8_t>(i);
    down[i] = static_cast<uint8_t>(31 - i);
  }
  const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,    0, 0, 0, 0,
                                    0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                    0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  for (const Crc32cVariant& variant : crc32c_variants()) {
    CHECK_EQ(variant.function(0, zeros.data(), 32), 0x8a9136aau);
    CHECK_EQ(variant.function(0, ones.data(), 32), 0x62a8ab43u);
    CHECK_EQ(variant.function(0, up.data(), 32), 0x46dd794eu);
    CHECK_EQ(variant.function(0, down.data(), 32), 0x113fdb5cu);
    CHECK_EQ(variant.function(0, read_command, 48), 0xd9963a56u);
    CHECK_EQ(variant.function(0, "123456789", 9), 0xe3069283u);
    CHECK_EQ(variant.function(0, nullptr, 0), 0u);
    CHECK_EQ(variant.function(7, nullptr, 0), 7u);
  }
  CHECK_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
}

TEST(every_variant_is_the_definition) {
  std::mt19937_64 random(1);
  const std::vector<uint8_t> memory = random_bytes(random, 100'000);
  for (int round = 0; round < 600; ++round) {
    const size_t offset = random() % 64;
    const size_t most = round % 3 == 0 ? 40 : round % 3 == 1 ? 2'000 : 60'000;
    const size_t bytes = random() % most;
    const auto seed = static_cast<uint32_t>(random());
    const uint32_t expected = by_definition(seed, memory.data() + offset, bytes);
    for (const Crc32cVariant& variant : crc32c_variants())
      CHECK_EQ(variant.function(seed, memory.data() + offset, bytes), expected);
  }
}

TEST(lengths_around_the_stretches) {
  std::mt19937_64 random(2);
  const std::vector<uint8_t> memory = random_bytes(random, 30'000);
  for (const size_t border :
       {size_t{0}, size_t{8}, size_t{768}, size_t{1536}, size_t{12'288}, size_t{24'576}})
    for (size_t bytes = border < 10 ? 0 : border - 10; bytes < border + 10; ++bytes)
      for (const Crc32cVariant& variant : crc32c_variants())
        CHECK_EQ(variant.function(0, memory.data() + 1, bytes), by_definition(0, memory.data() + 1, bytes));
}

TEST(in_pieces_as_in_one) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<uint8_t> memory = random_bytes(random, random() % 40'000);
    const uint32_t whole = by_definition(0, memory.data(), memory.size());
    for (const Crc32cVariant& variant : crc32c_variants()) {
      uint32_t value = 0;
      for (size_t at = 0; at < memory.size();) {
        const size_t bytes = std::min<size_t>(memory.size() - at, random() % (round % 2 ? 20'000 : 50));
        value = variant.function(value, memory.data() + at, bytes);
        at += bytes;
      }
      CHECK_EQ(value, whole);
    }
  }
}

TEST(one_changed_bit_shows) {
  std::mt19937_64 random(4);
  std::vector<uint8_t> memory = random_bytes(random, 20'000);
  const uint32_t before = crc32c(0, memory.data(), memory.size());
  for (int round = 0; round < 300; ++round) {
    const size_t at = random() % memory.size();
    const auto bit = static_cast<uint8_t>(1 << random() % 8);
    memory[at] ^= bit;
    CHECK(crc32c(0, memory.data(), memory.size()) != before);
    memory[at] ^= bit;
  }
}

RDMATX_TEST_MAIN()
