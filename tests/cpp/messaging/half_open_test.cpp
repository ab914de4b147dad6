#include "messaging/half_open.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>
#include <vector>

#include "check.hpp"

using namespace rdmatx;

namespace {

using Stage = HandshakeStage;

Source address(uint8_t last) {
  Source source{};
  source[3] = last;
  return source;
}

Source source_of_text(const std::string& text) {
  sockaddr_storage storage{};
  if (text.find(':') == std::string::npos) {
    auto& four = reinterpret_cast<sockaddr_in&>(storage);
    four.sin_family = AF_INET;
    CHECK_EQ(::inet_pton(AF_INET, text.c_str(), &four.sin_addr), 1);
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(storage);
    six.sin6_family = AF_INET6;
    CHECK_EQ(::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr), 1);
  }
  return source_of(storage);
}

size_t chosen(const std::vector<HalfOpen>& all) {
  const auto place = who_makes_room(all);
  return place ? *place : SIZE_MAX;
}

}  // namespace

TEST(nobody_goes_while_patience_lasts) {
  CHECK_EQ(chosen({}), SIZE_MAX);
  CHECK_EQ(chosen({{address(1), Stage::silent, 0.2}, {address(1), Stage::greeted, 0.4}}), SIZE_MAX);
  CHECK_EQ(chosen({{address(1), Stage::answered, 2.9}}), SIZE_MAX);
}

TEST(the_quietest_goes_first) {
  CHECK_EQ(
      chosen(
          {{address(1), Stage::silent, 1}, {address(2), Stage::silent, 3}, {address(3), Stage::silent, 2}}),
      1u);
}

TEST(the_address_with_most_places_gives_one_up) {
  std::vector<HalfOpen> all = {{address(9), Stage::silent, 9.0}};
  for (int i = 0; i < 10; ++i) all.push_back({address(1), Stage::silent, 1.0 + i * 0.1});
  CHECK_EQ(chosen(all), 10u);
  // Also where its sockets are further on, and the other's slow one is quieter.
  for (HalfOpen& half : all)
    if (half.source == address(1)) half.stage = Stage::greeted;
  CHECK_EQ(chosen(all), 10u);
}

TEST(the_few_of_an_address_outlast_the_young_of_a_crowd) {
  std::vector<HalfOpen> all = {{address(9), Stage::silent, 9.0}};
  for (int i = 0; i < 10; ++i) all.push_back({address(1), Stage::silent, 0.1});
  CHECK_EQ(chosen(all), SIZE_MAX);
  all[7].quiet_seconds = 0.3;
  CHECK_EQ(chosen(all), 7u);
}

TEST(those_answered_do_not_make_an_address_a_crowd) {
  std::vector<HalfOpen> all;
  for (int i = 0; i < 10; ++i) all.push_back({address(1), Stage::answered, 5.0});
  all.push_back({address(1), Stage::silent, 0.3});
  all.push_back({address(2), Stage::silent, 0.4});
  all.push_back({address(2), Stage::silent, 0.5});
  CHECK_EQ(chosen(all), 12u);
}

TEST(of_one_address_the_least_advanced_goes) {
  CHECK_EQ(chosen({{address(1), Stage::greeted, 9},
                   {address(1), Stage::silent, 1},
                   {address(1), Stage::silent, 0.1}}),
           1u);
}

TEST(who_was_answered_goes_last) {
  std::vector<HalfOpen> all;
  for (int i = 0; i < 10; ++i) all.push_back({address(1), Stage::answered, 5.0});
  all.push_back({address(2), Stage::silent, 0.3});
  CHECK_EQ(chosen(all), 10u);
  all.pop_back();
  all[4].quiet_seconds = 6;
  CHECK_EQ(chosen(all), 4u);
}

TEST(sources_are_told_apart_as_far_as_they_can_be) {
  CHECK(source_of_text("192.0.2.1") != source_of_text("192.0.2.2"));
  CHECK(source_of_text("192.0.2.1") == source_of_text("::ffff:192.0.2.1"));
  CHECK(source_of_text("2001:db8:0:1::1") == source_of_text("2001:db8:0:1:ffff::2"));
  CHECK(source_of_text("2001:db8:0:1::1") != source_of_text("2001:db8:0:2::1"));
  CHECK(source_of_text("fe80::1") != source_of_text("fe80::2"));
}

RDMATX_TEST_MAIN()
