// Against the examples of FIPS 180-4 and the test cases of RFC 4231.

#include "base/sha256.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

using namespace rdmatx;

namespace {

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string hex(const Digest& digest) {
  std::string text;
  for (uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string hmac(std::string_view key, std::string_view text) {
  HmacSha256 code(bytes_of(key));
  code.update(bytes_of(text));
  return hex(code.finish());
}

}  // namespace

TEST(the_examples_of_the_hash) {
  CHECK_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(hex(sha256(bytes_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                               "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"))),
           "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK_EQ(hex(sha256(bytes_of(std::string(1000000, 'a')))),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(every_length_around_a_block_and_every_cut) {
  std::vector<uint8_t> content(200);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<uint8_t>(i);
  Sha256 all;
  for (size_t length = 0; length < content.size(); ++length) {
    const auto whole = std::span(content).first(length);
    const Digest expected = sha256(whole);
    for (size_t cut : {size_t{1}, size_t{7}, size_t{63}, size_t{64}, size_t{65}}) {
      Sha256 hash;
      for (size_t at = 0; at < length; at += cut) hash.update(whole.subspan(at, std::min(cut, length - at)));
      CHECK(hash.finish() == expected);
    }
    all.update(expected);
  }
  CHECK_EQ(hex(all.finish()), "ba7b0fcea7d10c06b855b43d2b4dce1e3e842fff6be0acefb0faf4f2dd05bb47");
}

TEST(the_cases_of_the_code) {
  CHECK_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(hmac("Jefe", "what do ya want for nothing?"),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  CHECK_EQ(hmac(counting, std::string(50, '\xcd')),
           "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK_EQ(hmac(std::string(131, '\xaa'),
                "This is a test using a larger than block-size key and a larger than block-size data. The "
                "key needs to be hashed before being used by the HMAC algorithm."),
           "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(a_copied_key_serves_many_times) {
  const HmacSha256 key(bytes_of("Jefe"));
  for (int i = 0; i < 3; ++i) {
    HmacSha256 code = key;
    code.update(bytes_of("what do ya want "));
    code.update(bytes_of("for nothing?"));
    CHECK_EQ(hex(code.finish()), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  }
}

TEST(comparing_sees_every_bit) {
  const Digest one = sha256(bytes_of("abc"));
  CHECK(equal_in_constant_time(one, one));
  for (size_t bit = 0; bit < 8 * one.size(); ++bit) {
    Digest other = one;
    other[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    CHECK(!equal_in_constant_time(one, other));
  }
  CHECK(!equal_in_constant_time(one, std::span(one).first(31)));
  CHECK(equal_in_constant_time({}, {}));
}

TEST(wiping_leaves_nothing) {
  Digest secret = sha256(bytes_of("abc"));
  wipe(secret);
  CHECK(secret == Digest{});
}

RDMATX_TEST_MAIN()
