#include "messaging/half_open.hpp"

#include <map>
#include <tuple>

namespace rdmatx {

double patience_seconds(HandshakeStage stage) noexcept {
  switch (stage) {
    case HandshakeStage::silent:
      return 0.25;
    case HandshakeStage::greeted:
      return 0.5;
    case HandshakeStage::answered:
      break;
  }
  // It has to bring its queue pair up, and its machine may be busy.
  return 3.0;
}

std::optional<size_t> who_makes_room(std::span<const HalfOpen> all) {
  std::map<Source, size_t> places;
  for (const HalfOpen& half : all) ++places[half.source];
  const auto claim = [&](const HalfOpen& half) {
    return std::tuple(half.stage != HandshakeStage::answered, places[half.source],
                      -static_cast<int>(half.stage), half.quiet_seconds);
  };
  std::optional<size_t> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].quiet_seconds < patience_seconds(all[i].stage)) continue;
    if (!chosen || claim(all[i]) > claim(all[*chosen])) chosen = i;
  }
  return chosen;
}

}  // namespace rdmatx
