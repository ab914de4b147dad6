#include "messaging/rail_pairing.hpp"

#include "check.hpp"

using namespace rdmatx;

namespace {

RailRecord rail(const std::string& address, const std::string& provider = "system",
                bool same_host_only = false) {
  RailRecord record;
  record.provider = provider;
  record.device = "rxe";
  record.same_host_only = same_host_only;
  if (address.empty()) return record;  // no active port
  GidCandidate candidate;
  candidate.gid = Gid::parse(address);
  candidate.type = GidType::roce_v2;
  candidate.link_layer = LinkLayer::ethernet;
  candidate.prefix_bits = 24;
  record.candidates = {candidate};
  return record;
}

std::string pairs(const std::vector<RailRecord>& listener, const std::vector<RailRecord>& connector,
                  bool same_host = false) {
  std::string text;
  for (const RailChoice& choice : pair_rails(listener, connector, same_host))
    text += std::to_string(choice.listener_rail) + std::to_string(choice.connector_rail) + " ";
  return text;
}

}  // namespace

TEST(rails_of_one_subnet_find_each_other) {
  CHECK_EQ(pairs({rail("::ffff:10.0.0.1"), rail("::ffff:10.0.1.1")},
                 {rail("::ffff:10.0.1.2"), rail("::ffff:10.0.0.2")}),
           "01 10 ");
}

TEST(each_rail_is_used_once) {
  CHECK_EQ(pairs({rail("::ffff:10.0.0.1"), rail("::ffff:10.0.0.3")}, {rail("::ffff:10.0.0.2")}), "00 ");
  CHECK_EQ(pairs({rail("::ffff:10.0.0.1"), rail("::ffff:10.0.0.3")},
                 {rail("::ffff:10.0.0.2"), rail("::ffff:10.0.0.4"), rail("::ffff:10.0.0.5")}),
           "00 11 ");
}

TEST(routed_rails_pair_by_their_place) {
  CHECK_EQ(pairs({rail("::ffff:10.0.0.1"), rail("::ffff:10.0.1.1")},
                 {rail("::ffff:10.1.0.1"), rail("::ffff:10.1.1.1")}),
           "00 11 ");
}

TEST(a_rail_without_an_active_port_is_left_out) {
  CHECK_EQ(pairs({rail(""), rail("::ffff:10.0.1.1")}, {rail("::ffff:10.0.0.2"), rail("::ffff:10.0.1.2")}),
           "11 ");
  CHECK_EQ(pairs({rail("")}, {rail("::ffff:10.0.0.2")}), "");
}

TEST(one_host_uses_the_rail_that_is_for_it_alone) {
  const std::vector<RailRecord> mine{rail("::ffff:10.0.0.1"), rail("::ffff:10.0.9.1", "soft", true)};
  const std::vector<RailRecord> theirs{rail("::ffff:10.0.0.1"), rail("::ffff:10.0.9.1", "soft", true)};
  CHECK_EQ(pairs(mine, theirs, true), "11 ");
  CHECK_EQ(pairs(mine, {rail("::ffff:10.0.0.2"), rail("::ffff:10.0.9.2", "soft", true)}, false), "00 ");
  // The other side named its device, which then serves all.
  CHECK_EQ(pairs(mine, {rail("::ffff:10.0.0.1")}, true), "00 ");
}

TEST(providers_do_not_mix) {
  const std::vector<RailRecord> soft{rail("::ffff:10.0.0.1", "soft")};
  const std::vector<RailRecord> system{rail("::ffff:10.0.0.2")};
  CHECK_EQ(pairs(soft, system), "");
  CHECK(explain_no_rails(soft, system, false).find("provider soft") != std::string::npos);
}

RDMATX_TEST_MAIN()
