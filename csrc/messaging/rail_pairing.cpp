#include "messaging/rail_pairing.hpp"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace rdmatx {
namespace {

struct Pairing {
  RailChoice choice;
  bool same_subnet = false;
  int apart = 0;
};

// All pairs of rails that can work, the best first.
std::vector<Pairing> possible_pairs(std::span<const RailRecord> listener,
                                    std::span<const RailRecord> connector, bool same_host,
                                    bool same_host_only) {
  std::vector<Pairing> pairs;
  for (size_t i = 0; i < listener.size(); ++i) {
    for (size_t j = 0; j < connector.size(); ++j) {
      const RailRecord& mine = listener[i];
      const RailRecord& theirs = connector[j];
      if (mine.provider != theirs.provider) continue;
      if (mine.same_host_only != same_host_only || theirs.same_host_only != same_host_only) continue;
      const auto found = choose_gids(mine.candidates, theirs.candidates, same_host);
      if (!found) continue;
      pairs.push_back({{static_cast<uint8_t>(i), static_cast<uint8_t>(j), static_cast<uint16_t>(found->local),
                        static_cast<uint16_t>(found->remote), found->reason},
                       found->same_subnet,
                       std::abs(static_cast<int>(i) - static_cast<int>(j))});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pairing& a, const Pairing& b) {
    return std::tuple(!a.same_subnet, a.apart) < std::tuple(!b.same_subnet, b.apart);
  });
  return pairs;
}

}  // namespace

std::vector<RailChoice> pair_rails(std::span<const RailRecord> listener,
                                   std::span<const RailRecord> connector, bool same_host) {
  std::vector<Pairing> pairs;
  if (same_host) pairs = possible_pairs(listener, connector, same_host, true);
  if (pairs.empty()) pairs = possible_pairs(listener, connector, same_host, false);
  std::vector<RailChoice> chosen;
  for (const Pairing& pair : pairs) {
    const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](const RailChoice& other) {
      return other.listener_rail == pair.choice.listener_rail ||
             other.connector_rail == pair.choice.connector_rail;
    });
    if (!taken) chosen.push_back(pair.choice);
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const RailChoice& a, const RailChoice& b) { return a.listener_rail < b.listener_rail; });
  return chosen;
}

std::string explain_no_rails(std::span<const RailRecord> listener, std::span<const RailRecord> connector,
                             bool same_host) {
  const RailRecord& mine = listener.front();
  const RailRecord& theirs = connector.front();
  if (mine.provider != theirs.provider)
    return "one side uses provider " + mine.provider + " (" + mine.device + ") and the other " +
           theirs.provider + " (" + theirs.device +
           "): open both contexts with the same provider, Context(provider=\"soft\") or \"system\"";
  return explain_no_pair(mine.candidates, theirs.candidates, same_host);
}

}  // namespace rdmatx
