#include "messaging/gid_scorer.hpp"

#include <vector>

#include "check.hpp"

using namespace rdmatx;

namespace {

GidCandidate roce(const char* gid, GidType type = GidType::roce_v2, uint32_t mtu = 4096, uint8_t prefix = 0) {
  GidCandidate candidate;
  candidate.gid = Gid::parse(gid);
  candidate.type = type;
  candidate.link_layer = LinkLayer::ethernet;
  candidate.mtu_bytes = mtu;
  candidate.prefix_bits = prefix;
  return candidate;
}

GidCandidate infiniband(const char* gid) {
  GidCandidate candidate = roce(gid, GidType::infiniband);
  candidate.link_layer = LinkLayer::infiniband;
  return candidate;
}

using Side = std::vector<GidCandidate>;

}  // namespace

TEST(one_subnet_wins_over_everything) {
  const Side here{roce("fd00:1::1"), roce("::ffff:10.0.1.1", GidType::roce_v1), roce("::ffff:10.9.0.1")};
  const Side there{roce("fd00:2::1"), roce("::ffff:10.0.1.2", GidType::roce_v1), roce("::ffff:10.8.0.1")};
  const auto choice = choose_gids(here, there, false);
  CHECK(choice.has_value());
  CHECK_EQ(choice->local, 1u);
  CHECK_EQ(choice->remote, 1u);
  CHECK(choice->same_subnet);
  CHECK(choice->reason.find("on one subnet") != std::string::npos);
}

TEST(version_2_before_version_1) {
  const Side here{roce("::ffff:10.0.1.1", GidType::roce_v1), roce("::ffff:10.0.1.1")};
  const Side there{roce("::ffff:10.0.1.2", GidType::roce_v1), roce("::ffff:10.0.1.2")};
  const auto choice = choose_gids(here, there, false);
  CHECK_EQ(choice->local, 1u);
  CHECK_EQ(choice->remote, 1u);
  CHECK(choice->reason.find("RoCE v2") != std::string::npos);
}

TEST(types_never_mix) {
  const Side here{roce("::ffff:10.0.1.1", GidType::roce_v1)};
  const Side there{roce("::ffff:10.0.1.2")};
  CHECK(!choose_gids(here, there, false).has_value());
  CHECK(explain_no_pair(here, there, false).find("RoCE v1") != std::string::npos);
  CHECK(!choose_gids(here, Side{infiniband("fe80::1")}, false).has_value());
}

TEST(wide_addresses_before_link_local) {
  const Side here{roce("fe80::1"), roce("::ffff:10.0.1.1")};
  const Side there{roce("fe80::2"), roce("::ffff:10.0.1.2")};
  const auto choice = choose_gids(here, there, false);
  CHECK_EQ(choice->local, 1u);
  CHECK_EQ(choice->remote, 1u);
  const auto only = choose_gids(Side{roce("fe80::1")}, Side{roce("fe80::2"), roce("::ffff:10.0.0.1")}, false);
  CHECK_EQ(only->remote, 0u);
  CHECK(only->reason.find("link-local") != std::string::npos);
}

TEST(prefix_lengths_decide_subnets) {
  const Side here{roce("::ffff:10.0.1.1", GidType::roce_v2, 4096, 16)};
  CHECK(choose_gids(here, Side{roce("::ffff:10.0.2.1", GidType::roce_v2, 4096, 16)}, false)->same_subnet);
  CHECK(!choose_gids(here, Side{roce("::ffff:10.0.2.1", GidType::roce_v2, 4096, 24)}, false)->same_subnet);
  CHECK(!choose_gids(here, Side{roce("::ffff:10.1.1.1", GidType::roce_v2, 4096, 16)}, false)->same_subnet);
  CHECK(choose_gids(Side{roce("fd00:1::1")}, Side{roce("fd00:1::2")}, false)->same_subnet);
}

TEST(holes_are_skipped) {
  const Side here{roce("::"), roce("fe80::"), roce("::ffff:10.0.1.1")};
  const Side there{roce("::"), roce("::ffff:10.0.1.2")};
  const auto choice = choose_gids(here, there, false);
  CHECK_EQ(choice->local, 2u);
  CHECK_EQ(choice->remote, 1u);
  CHECK(!choose_gids(Side{roce("::")}, there, false).has_value());
  CHECK(!choose_gids({}, there, true).has_value());
}

TEST(mtu_is_the_lesser) {
  const auto choice = choose_gids(Side{roce("::ffff:10.0.1.1", GidType::roce_v2, 4096)},
                                  Side{roce("::ffff:10.0.1.2", GidType::roce_v2, 1024)}, false);
  CHECK_EQ(choice->mtu_bytes, 1024u);
  CHECK(choice->reason.find("lesser") != std::string::npos);
}

TEST(loopback_serves_within_a_host) {
  const Side here{roce("::ffff:127.0.0.1")};
  CHECK(choose_gids(here, here, true).has_value());
  CHECK(!choose_gids(here, here, false).has_value());
  CHECK(explain_no_pair(here, here, false).find("loopback") != std::string::npos);
}

TEST(infiniband_pairs_by_subnet_prefix) {
  const Side here{infiniband("fe80::1"), infiniband("fec0:0:0:1::1")};
  const Side there{infiniband("fec0:0:0:1::2")};
  const auto choice = choose_gids(here, there, false);
  CHECK_EQ(choice->local, 1u);
  CHECK(choice->same_subnet);
}

TEST(both_sides_would_choose_alike) {
  const Side a{roce("fe80::1"), roce("::ffff:10.0.1.1"), roce("::ffff:10.0.2.1")};
  const Side b{roce("::ffff:10.0.2.2"), roce("::ffff:10.0.1.2"), roce("fe80::2")};
  const auto ours = choose_gids(a, b, false);
  const auto theirs = choose_gids(b, a, false);
  CHECK(ours->same_subnet && theirs->same_subnet);
  CHECK_EQ(ours->local + ours->remote, theirs->local + theirs->remote);
}

TEST(processes_of_one_host_by_what_names_them) {
  const Side here{roce("fd72:6478:1:2::1"), roce("::ffff:10.0.1.1")};
  const Side near{roce("::ffff:10.0.1.1"), roce("fd72:6478:1:2::2")};
  auto choice = choose_gids(here, near, true);
  CHECK_EQ(choice->local, 0u);
  CHECK_EQ(choice->remote, 1u);
  // Another network namespace, another host: by address, also where only a router leads there.
  const Side far{roce("fd72:6478:1:3::2"), roce("::ffff:10.9.1.1")};
  for (const bool same_host : {true, false}) {
    choice = choose_gids(here, far, same_host);
    CHECK_EQ(choice->local, 1u);
    CHECK_EQ(choice->remote, 1u);
    CHECK(!choice->same_subnet);
  }
  CHECK(!choose_gids(here, Side{roce("fd72:6478:1:3::2")}, false).has_value());
}

TEST(an_address_that_two_hosts_both_have_leads_nowhere) {
  const Side here{roce("::ffff:172.17.0.1"), roce("::ffff:10.0.1.1")};
  const Side there{roce("::ffff:172.17.0.1"), roce("::ffff:10.9.1.1")};
  const auto choice = choose_gids(here, there, false);
  CHECK_EQ(choice->local, 1u);
  CHECK_EQ(choice->remote, 1u);
  CHECK_EQ(choose_gids(here, there, true)->local, 0u);
}

RDMATX_TEST_MAIN()
