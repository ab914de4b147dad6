#include "messaging/authentication.hpp"

#include <cstdlib>
#include <string_view>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/handshake.hpp"

using namespace rdmatx;

namespace {

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

constexpr std::string_view shared = "a secret of twenty-five";

Nonce counting(uint8_t first) {
  Nonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<uint8_t>(first + i);
  return nonce;
}

// Both ends after a handshake that went well.
struct Ends {
  SharedSecret secret = Secret::create(bytes_of(shared));
  SessionKeys keys{*secret, counting(1), counting(101)};
  RecordSeal connector{keys, Side::connector};
  RecordSeal listener{keys, Side::listener};
};

bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

std::vector<std::byte> record(const std::string& text) {
  return encode(RecordKind::failed, text);
}

}  // namespace

TEST(greeting_and_challenge_come_back_as_they_were) {
  const Nonce nonce = counting(7);
  const auto greeting = encode_greeting(nonce);
  CHECK(decode_greeting(std::span(greeting).subspan(RecordHead::wire_bytes)) == nonce);
  Challenge challenge{counting(9), sha256(bytes_of("proof"))};
  const auto bytes = encode_challenge(challenge);
  const auto body = std::span(bytes).subspan(RecordHead::wire_bytes);
  const auto back = decode_challenge(body);
  CHECK(back.has_value());
  CHECK(back->nonce == challenge.nonce);
  CHECK(back->proof == challenge.proof);
  for (size_t length = 0; length < body.size(); ++length) CHECK(!decode_challenge(body.first(length)));
  CHECK(!decode_greeting(body));
  CHECK(!decode_greeting({}));
}

TEST(nonces_are_fresh) {
  std::vector<Nonce> seen;
  for (int i = 0; i < 100; ++i) {
    const Nonce nonce = random_nonce();
    for (const Nonce& other : seen) CHECK(nonce != other);
    seen.push_back(nonce);
  }
}

TEST(the_proof_depends_on_the_secret_and_on_both_nonces_and_their_order) {
  const auto proof = [](std::string_view secret, uint8_t connector, uint8_t listener) {
    return SessionKeys(*Secret::create(bytes_of(secret)), counting(connector), counting(listener)).proof();
  };
  const Digest right = proof(shared, 1, 101);
  CHECK(right == proof(shared, 1, 101));
  CHECK(right != proof("a secret of twenty-fivE", 1, 101));
  CHECK(right != proof(shared, 2, 101));
  CHECK(right != proof(shared, 1, 102));
  CHECK(right != proof(shared, 101, 1));
}

// What the other side of the wire computes has to be the same for good: a change here is another version.
TEST(the_proof_is_the_documented_one) {
  HmacSha256 code(bytes_of(shared));
  code.update(bytes_of(std::string_view("rdmatx 2 listener proof\0", 24)));
  code.update(counting(1));
  code.update(counting(101));
  CHECK(code.finish() == Ends().keys.proof());
}

TEST(the_keys_of_the_sides_differ) {
  const Ends ends;
  CHECK(ends.keys.key(Side::connector) != ends.keys.key(Side::listener));
  CHECK(ends.keys.key(Side::connector) != ends.keys.proof());
  CHECK(ends.keys.key(Side::listener) != ends.keys.proof());
}

TEST(sealed_records_open_in_order) {
  Ends ends;
  for (const std::string text : {"one", "", "three"}) {
    const auto plain = record(text);
    const auto sealed = ends.connector.seal(plain);
    CHECK_EQ(sealed.size(), plain.size() + RecordSeal::wire_bytes);
    RecordProblem problem;
    const auto head = decode_head(std::span(sealed).first<RecordHead::wire_bytes>(), problem);
    CHECK(head.has_value());
    CHECK_EQ(head->body_bytes, sealed.size() - RecordHead::wire_bytes);
    const auto body = ends.listener.open(sealed);
    CHECK(body.has_value());
    CHECK(same(*body, std::span(plain).subspan(RecordHead::wire_bytes)));
  }
  // The other direction has numbers of its own.
  const auto answer = ends.listener.seal(record("answer"));
  CHECK(ends.connector.open(answer).has_value());
}

TEST(a_record_with_any_bit_altered_does_not_open) {
  Ends ends;
  const auto sealed = ends.connector.seal(record("words"));
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    auto altered = sealed;
    altered[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    CHECK(!ends.listener.open(altered));
  }
  for (size_t length = 0; length < sealed.size(); ++length)
    CHECK(!ends.listener.open(std::span(sealed).first(length)));
  CHECK(ends.listener.open(sealed).has_value());
}

TEST(repeated_reordered_and_reflected_records_do_not_open) {
  Ends ends;
  const auto first = ends.connector.seal(record("first"));
  const auto second = ends.connector.seal(record("second"));
  CHECK(!ends.listener.open(second));
  CHECK(!ends.connector.open(first));  // said back to who said it
  CHECK(ends.listener.open(first).has_value());
  CHECK(!ends.listener.open(first));
  CHECK(ends.listener.open(second).has_value());
  CHECK(!ends.listener.open(record("no seal at all, though long enough to have one")));
}

TEST(records_of_another_session_do_not_open) {
  Ends ends;
  const SessionKeys later(*ends.secret, counting(1), counting(102));
  RecordSeal listener(later, Side::listener);
  CHECK(!listener.open(ends.connector.seal(record("recorded"))));
}

TEST(an_empty_secret_is_refused_and_the_environment_gives_one) {
  CHECK_THROWS(UsageError, "secret is empty", Secret::create({}));
  ::unsetenv("RDMATX_SECRET");
  CHECK(!Secret::from_environment());
  ::setenv("RDMATX_SECRET", "", 1);
  CHECK(!Secret::from_environment());
  ::setenv("RDMATX_SECRET", std::string(shared).c_str(), 1);
  const SharedSecret secret = Secret::from_environment();
  CHECK(secret != nullptr);
  CHECK(SessionKeys(*secret, counting(1), counting(101)).proof() == Ends().keys.proof());
  ::unsetenv("RDMATX_SECRET");
}

TEST(no_error_holds_the_secret) {
  Ends ends;
  const auto sealed = ends.connector.seal(record("words"));
  const std::string_view text(reinterpret_cast<const char*>(sealed.data()), sealed.size());
  CHECK(text.find(shared) == std::string_view::npos);
}

RDMATX_TEST_MAIN()
