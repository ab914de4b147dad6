#include "messaging/half_open.hpp"

#include <algorithm>
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
  const auto is_answered = [](const HalfOpen& half) { return half.stage == HandshakeStage::answered; };
  const bool answered = std::all_of(all.begin(), all.end(), is_answered);
  std::map<Source, size_t> places;
  size_t most = 0;
  for (const HalfOpen& half : all)
    if (is_answered(half) == answered) most = std::max(most, ++places[half.source]);
  std::optional<size_t> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    const HalfOpen& half = all[i];
    if (is_answered(half) != answered || places[half.source] < most) continue;
    if (half.quiet_seconds < patience_seconds(half.stage)) continue;
    const auto claim = [](const HalfOpen& one) {
      return std::tuple(-static_cast<int>(one.stage), one.quiet_seconds);
    };
    if (!chosen || claim(half) > claim(all[*chosen])) chosen = i;
  }
  return chosen;
}

}  // namespace rdmatx
