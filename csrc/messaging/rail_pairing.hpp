#pragma once

#include <span>
#include <string>
#include <vector>

#include "messaging/handshake.hpp"

namespace rdmatx {

/// Which rails of the two sides reach each other, the listener's first; pure logic. On one host the rails
/// that are for that alone, where both have some; else the others: pairs on one subnet first, then those of
/// the same place, each rail in one pair. Empty where none can work: explain_no_rails() says why.
std::vector<RailChoice> pair_rails(std::span<const RailRecord> listener,
                                   std::span<const RailRecord> connector, bool same_host);
/// As a sentence with what to do.
std::string explain_no_rails(std::span<const RailRecord> listener, std::span<const RailRecord> connector,
                             bool same_host);

}  // namespace rdmatx
